/** The chosen head over all steps, and the alerts of the run. */

import { useEffect, useState } from "preact/hooks";
import type { JSX } from "preact";
import { formatCount, formatMeasure, pluralize } from "../format_numbers";
import { formatScoreName } from "../heads/scored_heads";
import type { HostContext } from "../host";
import { formatTitle } from "../paint/token_text";
import { Canvas } from "./canvas";
import type { WatchAlert, WatchHead, WatchInfo, WatchStatistic } from "./protocol";
import { findColumn } from "./table_layout";
import { paintSeries } from "./table_painter";

const FIRST_LISTED = 25;

type AlertFilter = "all" | "head" | "map";

export interface SidePanelOptions {
  readonly context: HostContext;
  readonly info: WatchInfo;
  readonly statistic: WatchStatistic;
  readonly chosen: number;
  /** The number of columns that `loadHead` loads; 0 while it is not known. */
  readonly columns: number;
  choose(row: number): void;
  openAlert(alert: WatchAlert): void;
  loadHead(row: number): Promise<WatchHead | null>;
  /** The alert whose map could not be opened, and why. */
  readonly problem: { readonly number: number; readonly message: string } | null;
}

export function SidePanel(options: SidePanelOptions): JSX.Element {
  const { context, info, statistic, chosen } = options;
  const [loaded, setLoaded] = useState<{ readonly row: number; readonly head: WatchHead } | null>(null);
  const [filter, setFilter] = useState<AlertFilter>("all");
  useEffect(() => {
    let isCurrent = true;
    void options.loadHead(chosen).then((head) => {
      if (isCurrent && head) setLoaded({ row: chosen, head });
    });
    return () => {
      isCurrent = false;
    };
  }, [chosen, info, options.columns]);
  const name = formatTitle(info.heads[chosen]?.name ?? "", 60);
  const head = loaded?.row === chosen ? loaded.head : null;
  return (
    <aside class="watch-side" aria-label="The chosen head, and alerts" tabIndex={0}>
      <h2>Head {name}</h2>
      <p class="soft">In {formatTitle(info.heads[chosen]?.layer ?? "", 120)}.</p>
      {head && <HeadFacts context={context} head={head} statistic={statistic} info={info} row={chosen} name={name} />}
      <div class="watch-alerts-head">
        <h3>{info.num_alerts === 0 ? "No alerts" : pluralize(info.num_alerts, "alert")}</h3>
        {info.num_alerts > 0 && (
          <label class="field">
            <span>show</span>
            <select value={filter} onChange={({ currentTarget }) => setFilter(currentTarget.value as AlertFilter)}>
              <option value="all">all</option>
              <option value="head">of head {name}</option>
              <option value="map">with a map</option>
            </select>
          </label>
        )}
      </div>
      <AlertList {...options} alerts={filterAlerts(info.alerts, filter, chosen)} />
    </aside>
  );
}

export function filterAlerts(alerts: readonly WatchAlert[], filter: AlertFilter, chosen: number): readonly WatchAlert[] {
  return alerts.filter(({ row, has_trace: hasTrace }) => filter === "all" || (filter === "head" ? row === chosen : hasTrace));
}

interface HeadFactsOptions extends Pick<SidePanelOptions, "context" | "info" | "statistic"> {
  readonly head: WatchHead;
  readonly row: number;
  readonly name: string;
}

function HeadFacts({ context, head, statistic, info, row, name }: HeadFactsOptions): JSX.Element {
  const values = head.values[statistic.name] ?? [];
  const alerts = info.alerts.flatMap((alert) => (alert.row === row ? [findColumn(head.steps, alert.step)] : [])).filter((column) => column !== null);
  const place = head.places.at(-1);
  const highest = Math.max(0, ...values.filter((value) => value !== null));
  const written = `${formatScoreName(statistic.name)}, up to ${formatMeasure(highest)}${alerts.length > 0 ? "; orange: alerts" : ""}`;
  const numbers = Object.entries(head.values).map(([key, those]) => [formatScoreName(key), those.at(-1)] as const);
  const facts = place && place.query >= 0 ? [...numbers, ["at query", place.query] as const, ["at key", place.key] as const] : numbers;
  return (
    <>
      <Canvas
        context={context}
        class="chart"
        paint={(surface, theme) => paintSeries(surface, theme, values, head.steps, alerts, written)}
        role="img"
        aria-label={`${formatScoreName(statistic.name)} of ${name} over the steps; the last numbers are listed below`}
      />
      <dl class="facts">
        {facts.map(([label, value]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>{typeof value === "number" ? formatMeasure(value) : "none"}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}

interface AlertListOptions extends Pick<SidePanelOptions, "info" | "choose" | "openAlert" | "problem"> {
  readonly alerts: readonly WatchAlert[];
}

/** The last alerts first. */
function AlertList({ alerts, info, choose, openAlert, problem }: AlertListOptions): JSX.Element {
  const [isWhole, setWhole] = useState(false);
  const listed = alerts.slice(isWhole ? 0 : -FIRST_LISTED).reverse();
  const missing = alerts.length - listed.length;
  return (
    <>
      <ol class="watch-alerts">
        {listed.map((alert) => {
          const { number, row, step, query, key, has_trace: hasTrace } = alert;
          const name = formatTitle(row === null ? "?" : (info.heads[row]?.name ?? "?"), 40);
          return (
            <li key={number} class="watch-alert" data-alert={number}>
              <p>
                step {formatCount(step)},{" "}
                <button type="button" class="link" disabled={row === null} onClick={() => row !== null && choose(row)}>
                  {name}
                </button>
                {query >= 0 && `, query ${formatCount(query)}, key ${formatCount(key)}`}
              </p>
              <p>{formatTitle(alert.reason, 200)}</p>
              {hasTrace && (
                <button
                  type="button"
                  aria-label={`Open map of ${name} at step ${formatCount(step)}`}
                  title="The attention of this head and sequence at this step"
                  onClick={() => openAlert(alert)}
                >
                  Open map
                </button>
              )}
              {problem?.number === number && (
                <p class="problem" role="alert">
                  {formatTitle(problem.message, 400)}
                </p>
              )}
            </li>
          );
        })}
      </ol>
      {missing > 0 && (
        <button type="button" onClick={() => setWhole(true)}>
          {formatCount(missing)} earlier
        </button>
      )}
    </>
  );
}
