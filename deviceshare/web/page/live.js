// Keeps asking for the newest state: once at the start, and whenever the server says that something changed. A stream that
// breaks is opened again; as long as there is none, the state is asked for every few seconds.

const RETRY_MS = 3000;
const PATIENCE_MS = 15000;

// `onLink` is told "live", "slow" (there is no stream, but there are answers) or "lost".
export function follow(onState, onLink) {
  let streaming = false;
  let asking = false;
  let again = false;

  async function ask() {
    again = true; // however often it changes meanwhile, the newest state is asked for once
    if (asking) return;
    asking = true;
    try {
      while (again) {
        again = false;
        const answer = await fetch("ui/state", { signal: AbortSignal.timeout(PATIENCE_MS) });
        if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
        onState(await answer.json());
        onLink(streaming ? "live" : "slow");
      }
    } catch (error) {
      onLink("lost");
      console.warn("No state:", error);
    } finally {
      asking = false;
    }
  }

  function listen() {
    const stream = new EventSource("ui/events");
    stream.onopen = () => (streaming = true);
    stream.onmessage = ask;
    stream.onerror = () => {
      // A browser gives up for good after an answer that is no stream, so every retry is ours. A stream that lasted has
      // only come to its regular end.
      stream.close();
      setTimeout(listen, streaming ? 100 : RETRY_MS);
      if (!streaming) ask();
      streaming = false;
    };
  }

  listen();
  ask();
}
