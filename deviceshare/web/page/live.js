// The connection to the server: fetches the state at the start and at each event of a stream. A stream that breaks is
// reopened; without one the state is fetched every few seconds.

const RETRY_MS = 3000;
const PATIENCE_MS = 15000;

// `onLink` receives "live", "slow" (no stream, but answers) or "lost".
export function follow(onState, onLink) {
  let streaming = false;
  let asking = false;
  let again = false;

  async function ask() {
    again = true; // however often it changes meanwhile, the newest state is fetched once
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
      console.warn("Failed to fetch the state:", error);
    } finally {
      asking = false;
    }
  }

  function listen() {
    const stream = new EventSource("ui/events");
    stream.onopen = () => (streaming = true);
    stream.onmessage = ask;
    stream.onerror = () => {
      // A browser doesn't retry after an answer that is not a stream, so this code does. A stream that was open has
      // reached its regular end.
      stream.close();
      setTimeout(listen, streaming ? 100 : RETRY_MS);
      if (!streaming) ask();
      streaming = false;
    };
  }

  listen();
  ask();
}
