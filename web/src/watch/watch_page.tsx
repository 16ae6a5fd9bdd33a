/**
 * The page of a watched run: all heads over all steps, the chosen head, and the alerts.
 *
 * In: the run's info. Out: a page that follows the run while it is written.
 * The map of an alert opens as another page.
 */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { JSX } from "preact";
import { formatCount, pluralize } from "../format_numbers";
import { formatScoreName } from "../heads/scored_heads";
import { useHashChange } from "../hash_change";
import type { HostContext } from "../host";
import { LruCache } from "../lru_cache";
import { formatTitle } from "../paint/token_text";
import { createLiveRegion } from "../panels/live_region";
import { describeError, LatestRequest } from "../server/requests";
import { isAbortError, type Transport } from "../server/transport";
import { DEFAULT_STATE, writeAddress } from "../state";
import { HeadTable } from "./head_table";
import { watchPaths, type OpenedAlert, type WatchAlert, type WatchHead, type WatchInfo, type WatchTable } from "./protocol";
import { SidePanel } from "./side_panel";
import { getChosenRow, getRows, getStatistic, readView, writeView, type RowOrder, type ViewState } from "./view_state";

/** How often a run that is still written is read. */
const POLL_MILLISECONDS = 3000;
const EMPTY: WatchTable = { steps: [], values: [], not_finite: [] };

export interface WatchPageOptions {
  readonly context: HostContext;
  readonly transport: Transport;
  readonly first: WatchInfo;
}

export function WatchPage({ context, transport, first }: WatchPageOptions): JSX.Element {
  const [info, setInfo] = useState(first);
  const [view, setView] = useState<ViewState>(() => readView(location.hash));
  const [columns, setColumns] = useState(0);
  const [table, setTable] = useState<{ readonly of: string; readonly answer: WatchTable }>({ of: "", answer: EMPTY });
  const [problem, setProblem] = useState("");
  const [alertProblem, setAlertProblem] = useState<{ readonly number: number; readonly message: string } | null>(null);
  const live = useMemo(() => createLiveRegion(context.signal), []);
  const liveHolder = useRef<HTMLDivElement>(null);
  const statistic = getStatistic(info, view);
  const rows = useMemo(() => getRows(info, view), [info, view.order]);
  const chosen = getChosenRow(info, view);
  const heads = useMemo(() => new LruCache<number, WatchHead>(64), [info, columns]);

  useEffect(() => liveHolder.current?.append(live.element), []);
  useEffect(() => {
    history.replaceState(null, "", location.pathname + writeView(view));
    const name = chosen === null ? "" : formatTitle(info.heads[chosen]?.name ?? "", 40);
    document.title = `${name} ${formatTitle(info.name, 40)} - AttnScope`.trim();
  }, [view, info]);
  useHashChange((hash) => setView(readView(hash)));
  useEffect(() => pollRun(transport, setInfo, setProblem), []);
  useEffect(() => {
    if (columns === 0) return;
    const request = new LatestRequest();
    void request.run(
      (signal) => transport.json<WatchTable>(watchPaths.table(statistic.name, columns), signal),
      (answer) => {
        setTable({ of: statistic.name, answer });
        setProblem("");
      },
      setProblem,
    );
    return () => request.cancel();
  }, [statistic.name, columns, info.steps.count]);

  const loadHead = async (row: number): Promise<WatchHead | null> => {
    const known = heads.get(row);
    if (known || columns === 0) return known ?? null;
    try {
      const head = await transport.json<WatchHead>(watchPaths.head(row, columns), context.signal);
      heads.set(row, head);
      return head;
    } catch (error) {
      if (!isAbortError(error)) setProblem(describeError(error));
      return null;
    }
  };
  const choose = (row: number): void => setView((before) => ({ ...before, head: info.heads[row]?.name ?? "" }));
  const openAlert = async ({ number }: WatchAlert): Promise<void> => {
    setAlertProblem(null);
    try {
      const { trace, query, key } = await transport.post<OpenedAlert>(watchPaths.open(), { alert: number }, context.signal);
      const pins = { pinQuery: query >= 0 ? query : null, pinKey: key >= 0 ? key : null };
      location.assign(`./${writeAddress({ ...DEFAULT_STATE, trace, ...pins })}`);
    } catch (error) {
      if (!isAbortError(error)) setAlertProblem({ number, message: describeError(error) });
    }
  };

  const shown = table.of === statistic.name ? table.answer : EMPTY;
  const shared = { context, info, statistic, choose, loadHead, openAlert: (alert: WatchAlert) => void openAlert(alert) };
  return (
    <div class="watch">
      <header class="bar">
        <h1>AttnScope</h1>
        <p class="trace-name">
          <bdi>{formatTitle(info.name)}</bdi>
        </p>
        <p class="soft">{describeRun(info)}</p>
      </header>
      <main class="heads" aria-label="All heads over all steps">
        <div class="heads-bar">
          <label class="field">
            <span>statistic</span>
            <select
              value={statistic.name}
              title={statistic.meaning}
              onChange={({ currentTarget }) => setView((before) => ({ ...before, statistic: currentTarget.value }))}
            >
              {info.statistics.map(({ name }) => (
                <option key={name} value={name}>
                  {formatScoreName(name)}
                </option>
              ))}
            </select>
          </label>
          <label class="field">
            <span>heads</span>
            <select
              value={view.order}
              onChange={({ currentTarget }) => setView((before) => ({ ...before, order: currentTarget.value as RowOrder }))}
            >
              <option value="worst">largest logit first</option>
              <option value="layer">by layer</option>
            </select>
          </label>
        </div>
        <p class="heads-words soft" role="status">
          {problem || describeTable(info, view, shown)}
        </p>
        {chosen !== null && (
          <HeadTable
            {...shared}
            table={shown}
            rows={rows}
            chosen={chosen}
            setColumns={setColumns}
            announce={live.announce}
          />
        )}
      </main>
      {chosen !== null && <SidePanel {...shared} columns={columns} chosen={chosen} problem={alertProblem} />}
      <div ref={liveHolder} />
    </div>
  );
}

/** Read the run every few seconds while the page is visible; returns how to stop. */
function pollRun(transport: Transport, setInfo: (change: (before: WatchInfo) => WatchInfo) => void, setProblem: (text: string) => void): () => void {
  const request = new LatestRequest();
  const timer = setInterval(() => {
    if (document.hidden) return;
    void request.run(
      (signal) => transport.json<WatchInfo>(watchPaths.about(), signal),
      (info) => setInfo((before) => (isUnchanged(before, info) ? before : info)),
      setProblem,
    );
  }, POLL_MILLISECONDS);
  return () => {
    clearInterval(timer);
    request.cancel();
  };
}

function isUnchanged(one: WatchInfo, other: WatchInfo): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

function describeRun({ steps, heads, num_alerts: alerts }: WatchInfo): string {
  const [last] = steps.last;
  const parts = [pluralize(heads.length, "head"), pluralize(steps.count, "measured step"), pluralize(alerts, "alert")];
  return last === undefined ? "no step is measured yet" : `${parts.join(", ")}; the last is step ${formatCount(last)}`;
}

/** What the colours show, in a sentence. */
export function describeTable(info: WatchInfo, view: ViewState, { steps }: WatchTable): string {
  const { meaning, lowest } = getStatistic(info, view);
  const text = meaning.charAt(0).toUpperCase() + meaning.slice(1);
  if (steps.length === 0) return `${text}.`;
  const pooled =
    steps.length < info.steps.count
      ? ` A column has ${Math.ceil(info.steps.count / steps.length)} measured steps at most: the colour is the ${lowest ? "lowest" : "largest"} of them.`
      : "";
  return `${text}. Bright is ${lowest ? "low" : "high"}; green: a query or key is not finite.${pooled} Triangles are alerts; an orange one opens the map of that moment.`;
}
