/** The chart of panels/chart.ts as a component. */

import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Host } from "../host";
import { Chart, type ChartData, type ChartEvents } from "../panels/chart";

export interface BarChartOptions extends ChartEvents {
  readonly height: number;
  readonly host: Host;
  /** Null clears the chart while the data is loading. */
  readonly data: ChartData | null;
}

export function BarChart({ height, host, data, onHover, onPick }: BarChartOptions): JSX.Element {
  const holder = useRef<HTMLDivElement>(null);
  const chart = useRef<Chart | null>(null);
  const events = useRef<ChartEvents>({});
  events.current = { ...(onHover && { onHover }), ...(onPick && { onPick }) };
  useLayoutEffect(() => {
    const controller = new AbortController();
    const made = new Chart(
      height,
      { host, signal: controller.signal },
      {
        onHover: (bar) => events.current.onHover?.(bar),
        ...(onPick && { onPick: (bar: number) => events.current.onPick?.(bar) }),
      },
    );
    chart.current = made;
    holder.current?.append(made.element);
    return () => controller.abort();
  }, []);
  useLayoutEffect(() => {
    if (data) chart.current?.show(data);
    else chart.current?.clear();
  });
  return <div ref={holder} />;
}
