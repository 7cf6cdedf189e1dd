/* Reads the script that DEVICESHARE_NVML_SCRIPT names: one fact in a line, its words separated by tabs. script.py writes it
 * and says what each line means. Nothing is kept between two questions, for it may change between them. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_WORDS = 8, MAX_LINE = 512 };

typedef struct { FILE *file; char line[MAX_LINE]; char *word[MAX_WORDS]; } script_t;

static script_t opened(void) {
    const char *path = getenv("DEVICESHARE_NVML_SCRIPT");
    return (script_t){.file = path ? fopen(path, "r") : NULL};
}

/* Goes to the next line that begins with `verb` and, unless these are NULL, names `uuid` as its first and `other` as its
 * second word. At the end of the script it closes it and answers false. Words that a line lacks are empty. */
static bool next(script_t *script, const char *verb, const char *uuid, const char *other) {
    static char empty[] = "";
    if (!script->file) return false;
    while (fgets(script->line, MAX_LINE, script->file)) {
        script->line[strcspn(script->line, "\n")] = 0;
        char *rest = script->line;
        for (int i = 0; i < MAX_WORDS; i++) script->word[i] = (rest ? strsep(&rest, "\t") : empty);
        if (strcmp(script->word[0], verb)) continue;
        if (uuid && strcmp(script->word[1], uuid)) continue;
        if (other && strcmp(script->word[2], other)) continue;
        return true;
    }
    fclose(script->file);
    script->file = NULL;
    return false;
}

/* The first line that fits, if any. */
static bool first(script_t *script, const char *verb, const char *uuid, const char *other) {
    *script = opened();
    bool found = next(script, verb, uuid, other);
    if (found) fclose(script->file);
    return found;
}

static long count(const char *verb) {
    script_t script = opened();
    long lines = 0;
    while (next(&script, verb, NULL, NULL)) lines++;
    return lines;
}

/* Which state of the script this is; script.py replaces the file at each change. */
typedef struct { ino_t inode; struct timespec time; } stamp_t;

static stamp_t stamp(void) {
    const char *path = getenv("DEVICESHARE_NVML_SCRIPT");
    struct stat is;
    return path && !stat(path, &is) ? (stamp_t){is.st_ino, is.st_mtim} : (stamp_t){0};
}

static bool same(stamp_t one, stamp_t other) {
    return one.inode == other.inode && one.time.tv_sec == other.time.tv_sec && one.time.tv_nsec == other.time.tv_nsec;
}
