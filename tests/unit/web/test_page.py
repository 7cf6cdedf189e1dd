"""The page's scripts, as far as they can be judged without a browser (tests/controlplane/test_ui.py has one)."""

import re
from pathlib import Path

import pytest

from deviceshare import web

PAGE = Path(web.__file__).parent / "page"
SCRIPTS = {path.name: path.read_text() for path in sorted(PAGE.glob("*.js"))}
IMPORTS = re.compile(r'import \{([^}]*)\} from "\./([^"]+)"')
EXPORTS = re.compile(r"export (?:async )?(?:function|const|let|class) (\w+)")
DEFINED = re.compile(r"(?:function|const|let|class) (\w+)|[(,{\[] ?(\w+)(?=[^()]*\) (?:=>|\{))|(\w+) =>")
PARTS = re.compile(r"(?:const|let) [\[{]([^\]}]*)[\]}]")
CALLED = re.compile(r"(?<![\w.])(\w+)\(")
IGNORED = re.compile(r'//[^\n]*|"[^"\n]*"')
OF_THE_LANGUAGE = {"if", "for", "while", "switch", "return", "function", "catch", "super", "await"}
OF_THE_BROWSER = {
    "Boolean", "Date", "Error", "EventSource", "Highlight", "Map", "Number", "Range", "Set", "String", "TextEncoder",
    "addEventListener", "clearTimeout", "decodeURIComponent", "encodeURIComponent", "fetch", "matchMedia",
    "setInterval", "setTimeout",
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_only_what_is_exported(name: str) -> None:
    """One name that isn't there, and a browser runs none of the page's scripts."""
    for names, source in IMPORTS.findall(SCRIPTS[name]):
        imported = {each.strip() for each in names.split(",")}
        assert imported <= set(EXPORTS.findall(SCRIPTS[source])), f"{name} imports from {source}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_calls_only_functions_that_it_has(name: str) -> None:
    """A function that is not there is an error only when it is called, as when somebody sorts by another order."""
    script = IGNORED.sub("", IMPORTS.sub("", SCRIPTS[name]))
    imported = {each.strip() for names, _ in IMPORTS.findall(SCRIPTS[name]) for each in names.split(",")}
    defined = {each for found in DEFINED.findall(script) for each in found if each}
    defined |= {each.strip() for names in PARTS.findall(script) for each in names.split(",")}
    assert set(CALLED.findall(script)) <= imported | defined | OF_THE_LANGUAGE | OF_THE_BROWSER
