/** Starts the explorer in an element, or shows why it cannot be started. */

import { App } from "./app";
import { followTheme, setLoadState, type Host } from "./host";
import { button } from "./panels/dom";
import { describeError } from "./server/requests";
import { createMissingTraceHelp, createNoTracesHelp, getStoppedMessage, showLoading, showProblem } from "./panels/messages";
import type { Later } from "./panels/view_context";
import { getHome, paths, type Meta, type Session } from "./server/protocol";
import { loadOpeningSoon, showFinding } from "./questions/opening";
import { createStore, DEFAULT_STATE, namesHead, readAddress, writeAddress } from "./state";
import { ResponseError, type Transport } from "./server/transport";

export interface RunningExplorer {
  /** Remove the explorer from the page and release what it holds. */
  destroy(): void;
}

/** `loadLater` loads what the first heatmap does not need. */
export async function startExplorer(
  root: HTMLElement,
  transport: Transport,
  host: Host,
  loadLater: () => Promise<Later>,
): Promise<RunningExplorer> {
  const stop = new AbortController();
  const { signal } = stop;
  root.dataset["attnscope"] = host.kind;
  followTheme(root, host, signal);
  await openExplorer({ root, transport, host, loadLater, signal });
  return {
    destroy() {
      stop.abort();
      root.textContent = "";
    },
  };
}

interface OpenContext {
  readonly root: HTMLElement;
  readonly transport: Transport;
  readonly host: Host;
  readonly loadLater: () => Promise<Later>;
  readonly signal: AbortSignal;
}

async function openExplorer(opening: OpenContext): Promise<void> {
  const { root, transport, host, loadLater, signal } = opening;
  setLoadState(root, host, "loading");
  showLoading(root);
  const showError = (title: string, message: string, ...more: HTMLElement[]): void => {
    setLoadState(root, host, "error");
    showProblem(root, title, message, ...more);
  };
  try {
    const session = await transport.json<Session>(paths.session(), signal);
    // A saved page carries the address that it was saved with.
    const fragment = host.addressBar.location.hash || (root.dataset["at"] ?? "");
    const linked = readAddress(fragment);
    const home = linked.trace === "" ? getHome(session) : null;
    if (home) return location.replace(home[0] + location.hash);
    const trace = linked.trace || (session.traces[0]?.trace ?? (session.has_model && !session.model_free ? "" : (session.example ?? "")));
    if (trace === "" && !session.has_model)
      return showError("No traces", "This server has nothing to show.", ...createNoTracesHelp());
    const isFree = trace !== "" && !namesHead(fragment) && linked.pinQuery === null && linked.pinKey === null;
    const [meta, opening] = await Promise.all([
      trace === "" ? null : transport.json<Meta>(paths.meta(trace), signal),
      isFree ? loadOpeningSoon(transport, trace, signal) : undefined,
    ]);
    if (signal.aborted) return;
    // With no trace yet, start with the text box.
    const view = trace === "" ? "sentence" : linked.view;
    // With an image, the picture of its last layer.
    const image = isFree && linked.view === "map" ? meta?.images[0] : undefined;
    const start = image ? { view: "picture" as const, layer: image.layers.at(-1) ?? 0 } : opening?.opening && showFinding(opening.opening);
    const store = createStore({ ...linked, trace, view, ...start });
    new App({ root, host, session, store, opening: image ? undefined : opening, loadLater, signal }, transport, meta);
  } catch (error) {
    if (!signal.aborted) await showOpenError(opening, error, showError);
  }
}

type ErrorView = (title: string, message: string, ...more: HTMLElement[]) => void;

async function showOpenError(opening: OpenContext, error: unknown, showError: ErrorView): Promise<void> {
  const { transport, host, signal } = opening;
  const retry = (): void => void openExplorer(opening);
  const { addressBar } = host;
  const wanted = readAddress(addressBar.location.hash).trace;
  if (!(error instanceof ResponseError && error.status === 404 && wanted !== "")) {
    const message = error instanceof TypeError ? getStoppedMessage(host) : describeError(error);
    return showError("No answer", message, button("Try again", retry, { class: "primary" }));
  }
  const choose = (trace: string): void => {
    addressBar.history.pushState(null, "", writeAddress({ ...DEFAULT_STATE, trace }));
    retry();
  };
  const traces = await transport.json<Session>(paths.session(), signal).then(
    (session) => session.traces,
    () => [],
  );
  if (!signal.aborted)
    showError("Not here", "This server does not have the trace of the link.", ...createMissingTraceHelp(wanted, traces, choose));
}
