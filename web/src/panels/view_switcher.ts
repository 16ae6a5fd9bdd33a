/** The views that are made when first shown, of which one at a time works and the others rest. */

import { element } from "./dom";
import type { CentreView } from "./view_context";
import type { View } from "../state";

export class ViewSwitcher {
  readonly element = element("div", { class: "views" });
  readonly #made = new Map<View, CentreView>();
  #now: CentreView | undefined;

  constructor(private readonly factories: Partial<Record<View, () => CentreView>>) {}

  /** The view that is shown, unless it is another part's. */
  get current(): CentreView | undefined {
    return this.#now;
  }

  /** The view to show, or none of these when it is another part's. What is hidden keeps its place. */
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
