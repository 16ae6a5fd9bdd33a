/** All heads as small histograms of one statistic, on a background that grows stronger with the mean. */

import type { Box } from "../geometry/box";
import { GAP, LEFT } from "../heads/grid_layout";
import { createHeadGrid } from "../heads/head_grid";
import { isFaded, type HeadsActions, type HeadsPart } from "../heads/heads_scene";
import type { HostContext } from "../host";
import { element } from "../panels/dom";
import type { Surface, Theme } from "../paint/surface";
import type { HeadId } from "../state";
import { paintBars, toPosition } from "./histogram";
import type { SurveyScene } from "./survey_scene";

/** CSS pixels. */
const HEIGHT = 36;
const MIN_WIDTH = 28;
const MAX_WIDTH = 96;
/** The opacity of the background at the end of the scale. */
const MAX_OPACITY = 0.42;

export function createHistogramGrid(context: HostContext, actions: HeadsActions): HeadsPart<SurveyScene> {
  const paintHistogram = (surface: Surface, theme: Theme, id: HeadId, box: Box, scene: SurveyScene): void => {
    const { context: pen } = surface;
    const { histograms, statistic } = scene;
    const shares = histograms?.shares[id[0]]?.[id[1]] ?? [];
    const mean = scene.heads.get(id.join())?.scores[statistic];
    const position = histograms && mean !== undefined ? toPosition(histograms.edges, mean) : null;
    const opacity = isFaded(scene, id) ? 0.2 : 1;
    const fill = (colour: string, alpha: number): void => {
      pen.globalAlpha = alpha * opacity;
      pen.fillStyle = colour;
      pen.fillRect(box.left, box.top, box.width, box.height);
      pen.globalAlpha = opacity;
    };
    fill(theme.panel, 1);
    if (position !== null) fill(theme.accent, position * MAX_OPACITY);
    if (shares.length > 0) paintBars(surface, box, theme, shares, position);
    pen.globalAlpha = 1;
  };
  const grid = createHeadGrid<SurveyScene>(context, actions, {
    label: "All heads as histograms: layers down, heads across",
    countHeads: ({ info }) => info.layers.map(({ numbers }) => numbers.length),
    getCellSize(heads, frameWidth) {
      const width = (frameWidth - LEFT) / Math.max(1, ...heads) - GAP;
      return { width: Math.floor(Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, width))), height: HEIGHT };
    },
    getRowName: (_, layer) => `L${layer}`,
    getColumnName({ info }, head) {
      const number = info.layers[0]?.numbers[head];
      const isShared = number !== undefined && info.layers.every(({ numbers }) => numbers[head] === number);
      return isShared ? `H${number}` : "";
    },
    paintCell: paintHistogram,
    getOutline: (theme, isCurrent) => ({ colour: isCurrent ? theme.ink : theme.muted, width: 2, margin: 1 }),
  });
  return { element: element("div", { class: "heads-grid" }, grid.frame), update: grid.update };
}
