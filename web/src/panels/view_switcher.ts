/** Creates views on first use and shows one at a time. */

import { element } from "./dom";
import type { CentreView } from "./view_context";
import type { View } from "../state";

export class ViewSwitcher {
  readonly element = element("div", { class: "views" });
  readonly #made = new Map<View, CentreView>();
  #now: CentreView | undefined;

  constructor(private readonly factories: Partial<Record<View, () => CentreView>>) {}

  /** The shown view, if it is one of these. */
  get current(): CentreView | undefined {
    return this.#now;
  }

  /** Show a view, or none if it is not one of these. Hidden views keep their scroll position. */
  show(view: View): void {
    const maker = this.factories[view];
    let wanted = this.#made.get(view);
    if (!wanted && maker) {
      wanted = maker();
      this.#made.set(view, wanted);
      this.element.append(wanted.element);
    }
    if (wanted === this.#now) return;
    this.#now?.deactivate();
    this.#now = wanted;
    for (const made of this.#made.values()) made.element.hidden = made !== wanted;
  }
}
