/**
 * Compares the predictions of the model with and without some heads.
 *
 * In: the ablated heads of the state. Out: numbers from the server.
 * A newer choice cancels the request before. The maps still show the model without ablation.
 */

import { segments } from "../panels/controls";
import { button, element, replaceChildren, token, type Child } from "../panels/dom";
import type { StatePanel, ViewContext } from "../panels/view_context";
import { formatDuration, pluralize } from "../format_numbers";
import { isConnectionError } from "../server/connection";
import { LatestRequest } from "../server/requests";
import { paths, type AblateRequest, type AblationMethod, type AblationResult } from "../server/protocol";
import { canAblate, toggleAblation } from "./ablated_heads";
import { getCurrentHead } from "./heads_scene";
import { getHeadName, includesHead } from "./scored_heads";

/** Wait, since several heads are often chosen one after the other. */
const PAUSE_MILLISECONDS = 150;
/** For texts of more tokens, the time that they take is estimated first. */
const LONG_TEXT = 2048;

export function createAblationPanel(context: ViewContext): StatePanel {
  const { store, session, signal } = context;
  const currentSwitch = element("input", { type: "checkbox" });
  const name = element("span");
  const list = element("p", { class: "ablated" });
  const status = element("p", { class: "soft", role: "status" });
  const result = element("div");
  const request = new LatestRequest();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let [requested, listed] = ["", ""];

  currentSwitch.addEventListener("change", () => {
    currentSwitch.checked = toggleAblation(context, getCurrentHead(store.get()));
  });
  const stopButton = button("Stop", () => {
    clearTimeout(timer);
    request.cancel();
    stopButton.hidden = true;
    status.textContent = "Stopped.";
  }, { hidden: true });
  const method = segments<AblationMethod>(
    "Ablation method",
    [
      ["zero", "output zero", "Replace the head output by zero"],
      ["mean", "output its mean", "Replace the head output at every token by its mean over this text"],
    ],
    (ablationMethod) => store.set({ ablationMethod }, "push"),
  );

  const stop = (): void => {
    clearTimeout(timer);
    request.cancel();
    requested = "";
  };
  const load = (body: AblateRequest, isLong: boolean): void =>
    void request.run(
      async (given) => {
        const { estimate_seconds: seconds } = isLong
          ? await context.transport.post<{ estimate_seconds: number }>(paths.ablate(), { ...body, estimate: true }, given)
          : { estimate_seconds: 0 };
        given.throwIfAborted();
        if (isLong) status.textContent += ` about ${formatDuration(seconds)}.`;
        return context.transport.post<AblationResult>(paths.ablate(), body, given);
      },
      (answer) => show(answer, pluralize(body.heads.length, "head")),
      (message, error) => {
        stopButton.hidden = true;
        status.textContent = message;
        // Requested again once the server answers; an error of the server stays.
        if (isConnectionError(error)) requested = "";
      },
    );
  const show = ({ loss: [before, after], harder, next }: AblationResult, heads: string): void => {
    stopButton.hidden = true;
    status.textContent = "Thin bars: the full model. Thick bars: with the heads ablated. The maps still show the full model.";
    const change = `${after < before ? "−" : "+"}${Math.abs(after - before).toFixed(3)}`;
    replaceChildren(
      result,
      element("h4", {}, `Loss, nats per token: ${change}`),
      createPairList([[null, before, after]], 3),
      element("h4", {}, "Probability of the next token"),
      createPairList(next.map(([text, ...rest]) => [token(text, 0), ...rest]), 3),
      element("h4", {}, harder.length > 0 ? "Tokens that became harder to predict, nats" : "No token became harder to predict"),
      createPairList(harder.map(([position, text, ...rest]) => [createTokenButton(position, text), ...rest]), 2),
    );
    context.announce(`Without ${heads}: ${before.toFixed(3)} to ${after.toFixed(3)} nats per token`);
  };
  /** A token of the text that links to the query before it, which predicts it. */
  const createTokenButton = (position: number, text: string): HTMLElement =>
    button(
      element("span", {}, token(text, position), element("span", { class: "soft" }, ` ${position}`)),
      () => {
        store.set({ view: "map" });
        context.pins.goToQuery(position - 1);
      },
      { title: "Show the query that predicts it" },
    );

  signal.addEventListener("abort", stop);
  const panel = element(
    "section",
    { class: "ablation", "aria-label": "Ablated heads" },
    element("label", { class: "switch" }, currentSwitch, name),
    method.element,
    list,
    status,
    stopButton,
    result,
  );
  return {
    element: panel,
    update(state, shown) {
      panel.hidden = shown === null;
      if (!shown) return stop();
      const { ablated, ablationMethod, trace } = state;
      currentSwitch.disabled = !canAblate(session, state);
      currentSwitch.checked = includesHead(ablated, getCurrentHead(state));
      name.textContent = `Ablate this head, ${getHeadName(shown.meta, getCurrentHead(state))}`;
      method.element.hidden = list.hidden = ablated.length === 0;
      method.update(ablationMethod);
      const wanted = JSON.stringify([trace, ablated, ablationMethod]);
      if (wanted !== listed) {
        listed = wanted;
        replaceChildren(
          list,
          ...ablated.map((one) => {
            const called = getHeadName(shown.meta, one);
            return button(`${called} ×`, () => toggleAblation(context, one), { "aria-label": `Restore ${called}` });
          }),
          button("Restore all", () => store.set({ ablated: [] }, "push")),
        );
      }
      if (wanted === requested) return;
      stop();
      requested = wanted;
      replaceChildren(result);
      stopButton.hidden = true;
      if (currentSwitch.disabled)
        status.textContent =
          "This runs the model again without the head, and the model of this text is not loaded: " +
          "start with attnscope look MODEL.";
      else if (ablated.length === 0)
        status.textContent = "This runs the model again without the head, and shows how its predictions change.";
      else {
        status.textContent = `Running without ${pluralize(ablated.length, "head")}…`;
        stopButton.hidden = false;
        const isLong = (shown.meta.layers[0]?.keys ?? 0) > LONG_TEXT;
        timer = setTimeout(() => load({ trace, heads: ablated, how: ablationMethod }, isLong), PAUSE_MILLISECONDS);
      }
    },
  };
}

type Pair = readonly [name: Child, before: number, after: number];

/** Numbers before and after, each with a bar; all on one scale. */
function createPairList(rows: readonly Pair[], digits: number): HTMLElement {
  // Numbers that are all rounded to zero tell nothing.
  const shown = rows.filter(([, ...numbers]) => numbers.some((value) => Number(value.toFixed(digits)) !== 0));
  const most = Math.max(...shown.flatMap(([, ...numbers]) => numbers));
  const createBar = (value: number): HTMLElement => {
    const made = element("span");
    made.style.width = `${(100 * value) / most}%`;
    return made;
  };
  return element(
    "ul",
    { class: "pairs" },
    ...shown.map(([name, before, after]) =>
      element(
        "li",
        {},
        name,
        element("span", { class: "pair", "aria-hidden": "true" }, createBar(before), createBar(after)),
        element("span", { class: "number" }, `${before.toFixed(digits)} → ${after.toFixed(digits)}`),
      ),
    ),
  );
}
