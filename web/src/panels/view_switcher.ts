/** Creates views on first use, once their script is loaded, and shows one at a time. */

import { element } from "./dom";
import type { CentreView, Later } from "./view_context";
import type { LaterScript } from "../load_later";
import type { View } from "../state";

export interface ViewEvents {
  /** Called when a view is shown later than it was requested. */
  onLoad(): void;
  /** Called when the requested view could not be loaded. */
  onFailure(): void;
}

export class ViewSwitcher {
  readonly element = element("div", { class: "views" });
  readonly #made = new Map<View, CentreView>();
  #now: CentreView | undefined;
  #wanted: View = "map";

  constructor(
    private readonly script: LaterScript,
    private readonly factories: Partial<Record<View, (later: Later) => CentreView>>,
    private readonly events: ViewEvents,
  ) {}

  /** The shown view, if it is one of these. */
  get current(): CentreView | undefined {
    return this.#now;
  }

  /** Show a view, or none if it is not one of these or not loaded yet. Hidden views keep their scroll position. */
  show(view: View): void {
    this.#wanted = view;
    const create = this.factories[view];
    const { loaded } = this.script;
    let wanted = this.#made.get(view);
    if (!wanted && create && loaded) {
      wanted = create(loaded);
      this.#made.set(view, wanted);
      this.element.append(wanted.element);
    } else if (!wanted && create) this.script.use(() => this.#showLoaded(view), () => view === this.#wanted && this.events.onFailure());
    if (wanted === this.#now) return;
    this.#now?.deactivate();
    this.#now = wanted;
    for (const made of this.#made.values()) made.element.hidden = made !== wanted;
  }

  #showLoaded(view: View): void {
    if (view !== this.#wanted) return;
    this.show(view);
    this.events.onLoad();
  }
}
