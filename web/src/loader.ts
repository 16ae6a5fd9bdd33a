/**
 * What a notebook loads for every widget: words until the explorer itself has come from the kernel, once for a page.
 *
 * Notebooks keep a copy of a widget's script in each model and in each saved file, and the browser keeps every module
 * that it has ever loaded. So this is small, and the rest is shared by all widgets of one build.
 */

import type { Cell } from "./notebook";
import { newNumber, type Message, type Model, type Part } from "./server/comm_transport";

interface Code {
  readonly render: (cell: Cell) => () => void;
  readonly css: string;
}

const WAITING = "The explorer comes from the kernel, which has not answered yet. If it was restarted, run the cell again.";

const shared = ((globalThis as { attnscopeCode?: Map<unknown, Promise<Code>> }).attnscopeCode ??= new Map());

function file(model: Model, path: string, gone: AbortSignal): Promise<Part> {
  const id = newNumber();
  return new Promise((resolve, reject) => {
    const heard = (message: Message, parts: [Part]): void => {
      if (message.id !== id) return;
      model.off("msg:custom", heard);
      resolve(parts[0]);
    };
    model.on("msg:custom", heard);
    gone.addEventListener("abort", (event) => {
      model.off("msg:custom", heard);
      reject(event);
    });
    model.send({ id, path });
  });
}

async function load(model: Model, gone: AbortSignal): Promise<Code> {
  const [script, style] = await Promise.all([file(model, "explorer.js", gone), file(model, "explorer.css", gone)]);
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const module = (await import(address)) as { default: Pick<Code, "render"> };
  URL.revokeObjectURL(address);
  return { render: module.default.render, css: new TextDecoder().decode(style) };
}

function render({ model, el }: Omit<Cell, "css">): () => void {
  const gone = new AbortController();
  let leave = (): void => undefined;
  const build = model.get("_build");
  const begin = (): void => {
    const others = shared.get(build);
    const code = others ?? load(model, gone.signal);
    shared.set(build, code);
    code.then(
      ({ render, css }) => {
        if (gone.signal.aborted) return;
        el.textContent = "";
        leave = render({ model, el, css });
      },
      (error: unknown) => {
        if (shared.get(build) === code) shared.delete(build);
        if (gone.signal.aborted) return;
        // The view that was loading it has gone: somebody else has to.
        if (others) begin();
        else el.textContent = `The explorer could not be loaded: ${String(error)}`;
      },
    );
  };
  el.textContent = WAITING;
  begin();
  return () => {
    gone.abort();
    leave();
    leave = () => undefined;
  };
}

export default { render };
