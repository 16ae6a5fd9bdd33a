/** Heads as dots on two scores that one chooses. */

import { element, field, replaceChildren, select } from "../panels/dom";
import type { HostContext } from "../host";
import { createHeadCanvas } from "./head_canvas";
import { getCurrentHead, explainScore, isFaded, type ScatterScene, type HeadsActions } from "./heads_view";
import { countLabels, isSameHead, listScoreNames, formatScoreName, type ScoredHead } from "./scored_heads";
import { findNearestDot, findNextDot, paintScatter, createPlot, type Dot } from "./scatter";
import { badge } from "./head_table";

/** How far from a dot, in CSS pixels, the pointer still means it. */
const HIT_PIXELS = 12;

export interface ScatterView {
  readonly element: HTMLElement;
  readonly controls: HTMLElement;
  update(scene: ScatterScene): void;
}

export function createScatterView(hostContext: HostContext, actions: HeadsActions): ScatterView {
  const controls = element("div", { class: "heads-axes" });
  const legend = element("p", { class: "heads-legend" });
  const frame = element("div", { class: "heads-plot" });
  /** There before anything is done with it. */
  let scene!: ScatterScene;
  let dots: readonly Dot[] = [];
  let names = "";

  const drawing = createHeadCanvas(frame, "Heads as dots on two scores", hostContext, actions, {
    paint(surface, theme, hovered) {
      const { state, roster } = scene;
      const box = { left: 52, top: 36, width: surface.width - 76, height: surface.height - 80 };
      const plot = createPlot(roster.heads, state.axes, box);
      dots = plot.dots;
      const isHeadFaded = ({ place }: ScoredHead): boolean => isFaded(scene, place);
      paintScatter(surface, theme, plot, { names: state.axes.map(formatScoreName), current: getCurrentHead(state), hovered, isFaded: isHeadFaded });
    },
    findHead: (x, y) => findNearestDot(dots, x, y, HIT_PIXELS)?.head.place ?? null,
    getBox(place) {
      const dot = dots.find(({ head }) => isSameHead(head.place, place));
      return dot ? { left: dot.x - HIT_PIXELS, top: dot.y - HIT_PIXELS, width: 2 * HIT_PIXELS, height: 2 * HIT_PIXELS } : null;
    },
    findNextHead: (key) => findNextDot(dots, getCurrentHead(scene.state), key)?.head.place ?? null,
  });
  frame.append(drawing.canvas);
  return {
    element: element("div", { class: "heads-scatter" }, frame, legend),
    controls,
    update(now) {
      scene = now;
      const { state, roster } = now;
      const known = listScoreNames(roster.heads);
      if (known.join() !== names) {
        names = known.join();
        const axis = (label: string, put: (name: string) => readonly [string, string]): HTMLElement =>
          field(label, select(known.map((name) => [name, formatScoreName(name)]), (name) => actions.axes(put(name))));
        replaceChildren(
          controls,
          axis("across", (name) => [name, scene.state.axes[1]]),
          axis("up", (name) => [scene.state.axes[0], name]),
        );
      }
      controls.querySelectorAll("select").forEach((made, index) => {
        made.value = state.axes[index] ?? "";
        made.title = explainScore(now, "measures", made.value);
      });
      const labels = countLabels(roster.heads);
      const both = ({ scores }: ScoredHead): boolean => state.axes.every((name) => Number.isFinite(scores[name]));
      const none = labels.length > 0 && !roster.heads.some(both) && "No head has both of these scores.";
      replaceChildren(legend, none, ...labels.map(([label]) => badge(label, explainScore(now, "meanings", label))));
      drawing.soon();
    },
  };
}
