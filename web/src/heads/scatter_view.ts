/** Heads as dots on two scores that the reader chooses. */

import { element, field, replaceChildren, select } from "../panels/dom";
import type { HostContext } from "../host";
import { createHeadCanvas } from "./head_canvas";
import { explain, getCurrentHead, isFaded, type HeadsActions, type HeadsPart, type HeadsScene } from "./heads_scene";
import { countLabels, formatScoreName, isSameHead, listScoreNames, type ScoredHead } from "./scored_heads";
import { createPlot, findNearestDot, findNextDot, paintScatter, type Dot } from "./scatter";
import { badge } from "./label_badge";

/** How near to a dot, in CSS pixels, the pointer hits it. */
const HIT_PIXELS = 12;

export function createScatterView(hostContext: HostContext, actions: HeadsActions): HeadsPart<HeadsScene> {
  const controls = element("div", { class: "heads-axes" });
  const legend = element("p", { class: "heads-legend" });
  const frame = element("div", { class: "heads-plot" });
  /** Set by the first update. */
  let scene!: HeadsScene;
  let dots: readonly Dot[] = [];
  let names = "";

  const canvas = createHeadCanvas(frame, "Heads as dots on two scores", hostContext, actions, {
    paint(surface, theme, hovered) {
      const { state, catalog } = scene;
      const box = { left: 52, top: 36, width: surface.width - 76, height: surface.height - 80 };
      const plot = createPlot(catalog.heads, state.axes, box);
      dots = plot.dots;
      const isHeadFaded = ({ id }: ScoredHead): boolean => isFaded(scene, id);
      paintScatter(surface, theme, plot, { names: state.axes.map(formatScoreName), current: getCurrentHead(state), hovered, isFaded: isHeadFaded });
    },
    findHead: (x, y) => findNearestDot(dots, x, y, HIT_PIXELS)?.head.id ?? null,
    getBox(id) {
      const dot = dots.find(({ head }) => isSameHead(head.id, id));
      return dot ? { left: dot.x - HIT_PIXELS, top: dot.y - HIT_PIXELS, width: 2 * HIT_PIXELS, height: 2 * HIT_PIXELS } : null;
    },
    findNextHead: (key) => findNextDot(dots, getCurrentHead(scene.state), key)?.head.id ?? null,
  });
  frame.append(canvas.element);
  return {
    element: element("div", { class: "heads-scatter" }, frame, legend),
    controls,
    update(newScene) {
      scene = newScene;
      const { state, catalog } = scene;
      const known = listScoreNames(catalog.heads);
      if (known.join() !== names) {
        names = known.join();
        const createAxisField = (label: string, put: (name: string) => readonly [string, string]): HTMLElement =>
          field(label, select(known.map((name) => [name, formatScoreName(name)]), (name) => actions.setAxes(put(name))));
        replaceChildren(
          controls,
          createAxisField("across", (name) => [name, scene.state.axes[1]]),
          createAxisField("up", (name) => [scene.state.axes[0], name]),
        );
      }
      controls.querySelectorAll("select").forEach((made, index) => {
        made.value = state.axes[index] ?? "";
        made.title = explain(scene, "measures", made.value);
      });
      const labels = countLabels(catalog.heads);
      const hasBothScores = ({ scores }: ScoredHead): boolean => state.axes.every((name) => Number.isFinite(scores[name]));
      const message = labels.length > 0 && !catalog.heads.some(hasBothScores) && "No head has both of these scores.";
      replaceChildren(legend, message, ...labels.map(([label]) => badge(label, explain(scene, "meanings", label))));
      canvas.scheduleDraw();
    },
  };
}
