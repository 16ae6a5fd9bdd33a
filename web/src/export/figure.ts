// A figure for a paper: the part of the matrix that is in view, of one head or of several, as wide as a column, in one size of letters.
//
// In: scenes of the map. Out: a drawing. Painters write letters of 11 pixels, so a figure is laid out in units of which 11 are the size
// of its letters, and scaled as a whole.
import { wrapText } from "../paint/canvas_text";
import { fonts, type Surface, type Theme } from "../paint/surface";
import { computeLayout } from "../map/map_layout";
import { paintScene, paintSceneLegend, type MapScene } from "../map/map_scene";

export interface FigureSettings {
  readonly inches: number;
  /** Size of the letters. */
  readonly points: number;
  readonly title: boolean;
  readonly tags: boolean;
  readonly strips: boolean;
  readonly legend: boolean;
  readonly caption: boolean;
  /** Hatch the masked half; otherwise it stays blank. */
  readonly mask: boolean;
}

export interface FigurePanel {
  readonly name: string;
  readonly scene: MapScene;
}

/** Something to save as a picture: its size in units, how many CSS pixels a unit has, and how it is painted. */
export interface Drawing {
  readonly width: number;
  readonly height: number;
  readonly unit: number;
  /** Device pixels per CSS pixel below which parts of it are lost. */
  readonly leastScale: number;
  paint(surface: Surface): void;
}

const LETTERS = 11;
const LINE = 15;
const TITLE = 20;
const GAP = 10;
const LEGEND = 58;
/** Narrower panels have positions along their axes, but no names. */
const NARROWEST_PANEL = 140;
const NARROWEST_NAMED = 240;
const PRINT_SCALE = 300 / 96;
const font = `${LETTERS}px ${fonts.text}`;

export function createFigure(panels: readonly FigurePanel[], settings: FigureSettings, theme: Theme, caption: string): Drawing {
  const width = Math.round((settings.inches * 72 * LETTERS) / settings.points);
  const unit = (settings.inches * 96) / width;
  const columns = Math.min(panels.length, Math.max(1, Math.floor(width / NARROWEST_PANEL)));
  const panelWidth = Math.floor((width - GAP * (columns - 1)) / columns);
  const ink = settings.mask ? theme : { ...theme, hatch: theme.paper, hatchGround: theme.paper };
  const fitted = panels.map(({ name, scene }) => ({ name, ...fitScene({ ...scene, theme: ink }, panelWidth, settings) }));
  const above = settings.title ? TITLE : 0;
  const rowHeight = above + Math.max(...fitted.map(({ height }) => height)) + GAP;
  const mapsHeight = rowHeight * Math.ceil(panels.length / columns);
  const pen = new OffscreenCanvas(1, 1).getContext("2d");
  const lines = settings.caption && pen ? wrapText(pen, font, caption, width - 8) : [];
  const legendHeight = settings.legend ? LEGEND : 0;
  const [first] = fitted;
  const bin = first ? first.scene.drawing.stride * first.scene.view.zoom * unit : 1;
  return {
    ...{ width, unit, height: mapsHeight + legendHeight + LINE * lines.length + 6 },
    leastScale: Math.max(PRINT_SCALE, 1 / bin),
    paint(surface) {
      const { context } = surface;
      context.fillStyle = theme.paper;
      context.fillRect(0, 0, width, surface.height);
      fitted.forEach(({ name, scene, height }, index) => {
        context.save();
        context.translate((index % columns) * (panelWidth + GAP), Math.floor(index / columns) * rowHeight);
        if (settings.title) writeLine(surface, `600 12px ${fonts.text}`, theme.ink, name, 4, 14);
        context.translate(0, above);
        paintScene({ ...surface, width: panelWidth, height }, scene);
        context.restore();
      });
      if (first && settings.legend) paintSceneLegend(surface, first.scene, { left: 8, top: mapsHeight, width: width - 12, height: LEGEND });
      lines.forEach((line, index) => writeLine(surface, font, theme.muted, line, 4, mapsHeight + legendHeight + LINE * (index + 0.75)));
    },
  };
}

function writeLine({ context }: Surface, letters: string, colour: string, text: string, x: number, y: number): void {
  context.font = letters;
  context.fillStyle = colour;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillText(text, x, y);
}

/** The same part of the matrix in another width, as high as that makes it. */
function fitScene(scene: MapScene, width: number, settings: FigureSettings): { scene: MapScene; height: number } {
  const { view, data } = scene;
  const keys = Math.min(view.keys - view.key, view.width / view.zoom);
  const queries = Math.min(view.queries - view.query, view.height / view.zoom);
  const names = width >= NARROWEST_NAMED;
  const parts = { tags: settings.tags, strips: settings.strips && names, legend: false, names };
  const hasTexts = names && scene.text("key", Math.floor(view.key)) !== undefined;
  const matrix = { queries: data.plan.queries, keys: (data.plan.queries * keys) / queries, has_texts: hasTexts };
  const layOut = (height: number): MapScene["layout"] => computeLayout(width, height, matrix, Infinity, parts);
  const { plot } = layOut(width);
  const height = Math.round(width - plot.height + Math.min(1.5 * width, (plot.width * queries) / keys));
  const layout = layOut(height);
  const zoom = Math.min(layout.plot.width / keys, layout.plot.height / queries);
  const seen = { ...view, width: keys * zoom, height: queries * zoom, zoom };
  return { scene: { ...scene, view: seen, layout: { ...layout, plot: { ...layout.plot, width: seen.width, height: seen.height } }, parts, isMaskBlank: !settings.mask }, height };
}
