/** Loads the second script of the page, once, before its first use. */

import type { Later, ViewContext } from "./panels/view_context";

export class LaterScript {
  #loaded: Later | null = null;

  constructor(
    private readonly load: () => Promise<Later>,
    private readonly context: Pick<ViewContext, "showNotice" | "signal">,
  ) {}

  /** What it holds; null until it is loaded. */
  get loaded(): Later | null {
    return this.#loaded;
  }

  /** Load it when the browser is idle, so that its first use does not wait. A failure is shown when it is used. */
  preload(onLoad: () => void): void {
    const load = (): void => void this.#load().then(onLoad, () => undefined);
    // Safari does not have it.
    if ("requestIdleCallback" in globalThis) requestIdleCallback(load);
    else setTimeout(load, PRELOAD_MILLISECONDS);
  }

  /** Call `action` at once if it is loaded, else when it is; a failure is shown, and `onFailure` called. */
  use(action: (later: Later) => void, onFailure: () => void = () => undefined): void {
    const { showNotice, signal } = this.context;
    if (this.#loaded) return action(this.#loaded);
    this.#load().then(
      (later) => signal.aborted || action(later),
      () => {
        if (signal.aborted) return;
        showNotice("This part of the explorer could not be loaded. Reload the page to try again.");
        onFailure();
      },
    );
  }

  async #load(): Promise<Later> {
    return (this.#loaded = await this.load());
  }
}

const PRELOAD_MILLISECONDS = 200;
