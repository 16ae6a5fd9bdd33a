/** Heads as dots on two scores that one chooses. */

import { element, field, replaceChildren, select } from "../panels/dom";
import type { Surroundings } from "../host";
import { createDrawing } from "./head_canvas";
import { currentOf, explained, isFaded, type Dotted, type PartActions } from "./heads_view";
import { labelCounts, samePlace, scoreNames, spaced, type Head } from "./scored_heads";
import { nearestDot, nextDot, paintScatter, plotOf, type Dot } from "./scatter";
import { badge } from "./head_table";

/** How far from a dot, in CSS pixels, the pointer still means it. */
const NEAR = 12;

export interface DotsPart {
  readonly element: HTMLElement;
  readonly controls: HTMLElement;
  update(scene: Dotted): void;
}

export function createPlot(around: Surroundings, actions: PartActions): DotsPart {
  const controls = element("div", { class: "heads-axes" });
  const legend = element("p", { class: "heads-legend" });
  const frame = element("div", { class: "heads-plot" });
  /** There before anything is done with it. */
  let scene!: Dotted;
  let dots: readonly Dot[] = [];
  let names = "";

  const drawing = createDrawing(frame, "Heads as dots on two scores", around, actions, {
    paint(surface, theme, hovered) {
      const { state, roster } = scene;
      const box = { left: 52, top: 36, width: surface.width - 76, height: surface.height - 80 };
      const plot = plotOf(roster.heads, state.axes, box);
      dots = plot.dots;
      const faded = ({ place }: Head): boolean => isFaded(scene, place);
      paintScatter(surface, theme, plot, { names: state.axes.map(spaced), current: currentOf(state), hovered, faded });
    },
    at: (x, y) => nearestDot(dots, x, y, NEAR)?.head.place ?? null,
    box(place) {
      const dot = dots.find(({ head }) => samePlace(head.place, place));
      return dot ? { left: dot.x - NEAR, top: dot.y - NEAR, width: 2 * NEAR, height: 2 * NEAR } : null;
    },
    step: (key) => nextDot(dots, currentOf(scene.state), key)?.head.place ?? null,
  });
  frame.append(drawing.canvas);
  return {
    element: element("div", { class: "heads-scatter" }, frame, legend),
    controls,
    update(now) {
      scene = now;
      const { state, roster } = now;
      const known = scoreNames(roster.heads);
      if (known.join() !== names) {
        names = known.join();
        const axis = (label: string, put: (name: string) => readonly [string, string]): HTMLElement =>
          field(label, select(known.map((name) => [name, spaced(name)]), (name) => actions.axes(put(name))));
        replaceChildren(
          controls,
          axis("across", (name) => [name, scene.state.axes[1]]),
          axis("up", (name) => [scene.state.axes[0], name]),
        );
      }
      controls.querySelectorAll("select").forEach((made, index) => {
        made.value = state.axes[index] ?? "";
        made.title = explained(now, "measures", made.value);
      });
      const labels = labelCounts(roster.heads);
      const both = ({ scores }: Head): boolean => state.axes.every((name) => Number.isFinite(scores[name]));
      const none = labels.length > 0 && !roster.heads.some(both) && "No head has both of these scores.";
      replaceChildren(legend, none, ...labels.map(([label]) => badge(label, explained(now, "meanings", label))));
      drawing.soon();
    },
  };
}
