/** From an empty page to a running explorer, or to words that say why not. */

import { App } from "./app";
import { button } from "./panels/dom";
import { told } from "./server/inquiry";
import { missingTrace, noTraces, showLoading, showProblem, STOPPED } from "./panels/messages";
import { paths, type Meta, type Session } from "./server/protocol";
import { createStore, readAddress, writeAddress } from "./state";
import { Refused, type Transport } from "./server/transport";

export async function start(root: HTMLElement, transport: Transport): Promise<void> {
  showLoading(root);
  try {
    const session = await transport.json<Session>(paths.session());
    const linked = readAddress(location.hash);
    const trace = linked.trace || (session.traces[0]?.trace ?? "");
    if (trace === "" && !session.live)
      return showProblem(root, "No traces", "This server has nothing to show.", ...noTraces());
    const meta = trace === "" ? null : await transport.json<Meta>(paths.meta(trace));
    // With nothing recorded yet, typing is the way to something.
    new App(
      root,
      transport,
      session,
      createStore({ ...linked, trace, view: trace === "" ? "sentence" : linked.view }),
      meta,
    );
  } catch (error) {
    await failed(root, transport, error);
  }
}

async function failed(root: HTMLElement, transport: Transport, error: unknown): Promise<void> {
  const again = (): void => void start(root, transport);
  const wanted = readAddress(location.hash).trace;
  if (!(error instanceof Refused && error.status === 404 && wanted !== "")) {
    return showProblem(
      root,
      "No answer",
      error instanceof TypeError ? STOPPED : told(error),
      button("Try again", again, { class: "primary" }),
    );
  }
  const open = (trace: string): void => {
    history.pushState(null, "", writeAddress({ ...readAddress(""), trace }));
    again();
  };
  const traces = await transport.json<Session>(paths.session()).then(
    (session) => session.traces,
    () => [],
  );
  showProblem(
    root,
    "Not here",
    "This server does not have the trace of the link.",
    ...missingTrace(wanted, traces, open),
  );
}
