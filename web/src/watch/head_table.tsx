/** All heads and steps as colours in a scrolling frame; a card shows the numbers under the pointer. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { JSX } from "preact";
import { formatCount } from "../format_numbers";
import { createHoverCard, type HoverCard } from "../heads/hover_card";
import { formatScoreName } from "../heads/scored_heads";
import type { HostContext } from "../host";
import { formatTitle } from "../paint/token_text";
import { Canvas } from "./canvas";
import type { StepRange, WatchAlert, WatchHead, WatchInfo, WatchStatistic, WatchTable } from "./protocol";
import { countColumns, findCell, findColumn, getCellBox, getTableHeight, layoutTable, stepCell, TOP, type Cell } from "./table_layout";
import { createTableImage, paintScale, paintTable, type AlertMark } from "./table_painter";
import { createScale } from "./value_scale";

export interface HeadTableOptions {
  readonly context: HostContext;
  readonly info: WatchInfo;
  readonly statistic: WatchStatistic;
  readonly table: WatchTable;
  /** The indices of heads from top to bottom. */
  readonly rows: readonly number[];
  readonly chosen: number;
  choose(row: number): void;
  openAlert(alert: WatchAlert): void;
  setColumns(columns: number): void;
  loadHead(row: number): Promise<WatchHead | null>;
  announce(text: string): void;
}

export function formatSteps([first, last]: StepRange): string {
  return first === last ? `step ${formatCount(first)}` : `steps ${formatCount(first)} to ${formatCount(last)}`;
}

export function HeadTable(options: HeadTableOptions): JSX.Element {
  const { context, info, statistic, table, rows, chosen } = options;
  const frame = useRef<HTMLDivElement>(null);
  const area = useRef<HTMLDivElement>(null);
  const card = useRef<HoverCard | null>(null);
  const [size, setSize] = useState<readonly [number, number]>([0, 0]);
  const [scroll, setScroll] = useState(0);
  const [hovered, setHovered] = useState<Cell | null>(null);
  const layout = layoutTable(size[0], size[1], rows.length, table.steps.length);
  const scale = useMemo(() => createScale(statistic, table), [statistic, table]);
  const image = useMemo(() => createTableImage(table, rows, scale), [table, rows, scale]);
  const names = useMemo(() => rows.map((row) => formatTitle(info.heads[row]?.name ?? "", 40)), [rows, info]);
  const marks = useMemo(() => findMarks(info, rows, table.steps), [info, rows, table]);
  const chosenAt = rows.indexOf(chosen);

  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return;
    const measure = (): void => {
      setSize([element.clientWidth, element.clientHeight]);
      options.setColumns(countColumns(element.clientWidth));
    };
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    measure();
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    if (!area.current) return;
    card.current = createHoverCard(area.current);
    area.current.append(card.current.element);
    return () => card.current?.element.remove();
  }, []);
  useEffect(() => {
    if (!hovered) return card.current?.hide();
    const row = rows[hovered.row];
    const steps = table.steps[hovered.column];
    if (row === undefined || !steps) return;
    let isCurrent = true;
    const show = (scores: Readonly<Record<string, number>>): void => {
      const labels = marks.filter((mark) => mark.row === hovered.row && mark.column === hovered.column).map(({ alert }) => formatTitle(alert.rule, 40));
      const head = { id: [0, row] as const, name: "", labels: [...new Set(labels)], scores };
      card.current?.show(getCellBox(layout, hovered, scroll), names[hovered.row] ?? "", head, ` ${formatSteps(steps)}`);
    };
    const own = table.values[row]?.[hovered.column];
    show(typeof own === "number" ? { [statistic.name]: own } : {});
    void options.loadHead(row).then((head) => {
      const column = head ? findColumn(head.steps, steps[1]) : null;
      if (!isCurrent || !head || column === null) return;
      const values = Object.entries(head.values).flatMap(([name, those]) => (typeof those[column] === "number" ? [[name, those[column]]] : []));
      const place = head.places[column];
      show({ ...Object.fromEntries(values), ...(place && place.query >= 0 ? { "at query": place.query, "at key": place.key } : {}) });
    });
    return () => {
      isCurrent = false;
    };
  }, [hovered, table, rows]);

  const findHovered = ({ offsetX, offsetY }: MouseEvent): Cell | null => findCell(layout, offsetX, offsetY, scroll);
  const findAlert = (cell: Cell): WatchAlert | undefined =>
    marks.find((mark) => mark.isOpenable && mark.row === cell.row && Math.abs(mark.column - cell.column) * layout.columnWidth <= 5)?.alert;
  const choose = (cell: Cell): void => {
    const row = rows[cell.row];
    if (row !== undefined) options.choose(row);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const from = hovered ?? { row: Math.max(0, chosenAt), column: layout.columns - 1 };
    const next = stepCell(layout, from, event.key);
    if (next) {
      setHovered(next);
      choose(next);
      scrollToRow(frame.current, getCellBox(layout, next, 0));
      const value = table.values[rows[next.row] ?? -1]?.[next.column];
      const steps = table.steps[next.column];
      if (steps) options.announce(`${names[next.row] ?? ""}, ${formatSteps(steps)}, ${formatScoreName(statistic.name)} ${value ?? "unknown"}`);
    } else if (event.key === "Enter") {
      const alert = findAlert(from);
      if (alert) options.openAlert(alert);
    } else return;
    event.preventDefault();
  };

  return (
    <div class="heads-area" ref={area}>
      <div class="heads-frame" ref={frame} onScroll={({ currentTarget }) => setScroll(currentTarget.scrollTop)}>
        <div class="heads-room" style={{ height: `${getTableHeight(layout)}px` }}>
          <Canvas
            context={context}
            paint={(surface, theme) => paintTable(surface, theme, { layout, image, names, steps: table.steps, marks, chosen: chosenAt, hovered, scroll })}
            style={{ width: `${size[0]}px`, height: `${size[1]}px` }}
            class={hovered ? "pickable" : ""}
            tabIndex={0}
            role="application"
            aria-label={`${formatScoreName(statistic.name)} of all heads: heads down, steps across`}
            aria-description="Arrows go from head to head and from step to step. Enter opens the map of an alert. The list of alerts is on the right."
            onPointerMove={(event) => setHovered((before) => keepSame(before, findHovered(event)))}
            onPointerLeave={() => setHovered(null)}
            onBlur={() => setHovered(null)}
            onClick={(event) => {
              const cell = findHovered(event);
              const alert = cell && findAlert(cell);
              if (alert) options.openAlert(alert);
              else if (cell) choose(cell);
            }}
            onKeyDown={onKeyDown}
          />
        </div>
      </div>
      <Canvas
        context={context}
        class="heads-scale"
        paint={(surface, theme) => paintScale(surface, theme, scale, formatScoreName(statistic.name))}
        role="img"
        aria-label={`The colours of ${formatScoreName(statistic.name)}, up to ${scale.highest}; bright is ${scale.isReversed ? "low" : "high"}`}
      />
    </div>
  );
}

interface Mark extends AlertMark {
  readonly alert: WatchAlert;
}

/** Where alerts are; of several in a cell, one whose map can be opened. */
function findMarks({ alerts }: WatchInfo, rows: readonly number[], steps: readonly StepRange[]): Mark[] {
  const positions = new Map(rows.map((row, at) => [row, at]));
  const marks = alerts.flatMap((alert) => {
    const row = alert.row === null ? undefined : positions.get(alert.row);
    const column = findColumn(steps, alert.step);
    return row === undefined || column === null ? [] : [{ row, column, isOpenable: alert.has_trace, alert }];
  });
  return marks.sort((one, other) => Number(one.isOpenable) - Number(other.isOpenable));
}

function keepSame(before: Cell | null, after: Cell | null): Cell | null {
  return before && after && before.row === after.row && before.column === after.column ? before : after;
}

function scrollToRow(frame: HTMLElement | null, { top, height }: { readonly top: number; readonly height: number }): void {
  if (!frame) return;
  frame.scrollTop = Math.min(top - TOP - 2, Math.max(frame.scrollTop, top + height + 4 - frame.clientHeight));
}
