/**
 * The Ask box: one field for words, heads, links, filters and commands, with a list of suggestions.
 *
 * It follows the combobox pattern of ARIA: the focus stays in the field, and arrows move through the list.
 */

import { render, type JSX } from "preact";
import { useEffect, useImperativeHandle, useRef, useState } from "preact/hooks";
import { formatRunningText } from "../paint/token_text";
import { parseQuestion } from "../questions/parse_question";
import { describeError } from "../server/requests";
import type { Side } from "../server/protocol";
import { isAbortError } from "../server/transport";
import { findNextPlaces, type Place } from "./find_words";
import { pickTokens, suggest, type AskContext, type Suggestion } from "./suggestions";
import { formatCount } from "../format_numbers";

export interface AskBox {
  readonly element: HTMLElement;
  focus(): void;
  /** The next place of the words that were found last. */
  step(backward: boolean): void;
  /** Forget what was found: it belongs to another text. */
  reset(): void;
}

export type AskBoxContext = Omit<AskContext, "rememberPlace"> & {
  /** Called when the field gets the focus. */
  prepare(): void;
  /** Give the focus back to the view. */
  returnFocus(): void;
  announce(text: string): void;
  readonly signal: AbortSignal;
};

interface BoxHandle {
  focus(): void;
  setStatus(text: string): void;
}

const PAUSE_MILLISECONDS = 80;
const LISTED = "ask-list";

export function createAskBox(context: AskBoxContext): AskBox {
  const slot = document.createElement("div");
  slot.className = "ask";
  slot.setAttribute("role", "search");
  const handle: { current: BoxHandle | null } = { current: null };
  let last: { readonly text: string; readonly side: Side; readonly place: Place } | null = null;
  let stepping = new AbortController();
  const remember = (text: string, side: Side, place: Place): void => {
    last = { text, side, place };
    const status = `${formatCount(place.index + 1)} of ${formatCount(place.count)}`;
    handle.current?.setStatus(status);
    context.announce(status);
  };
  const step = async (backward: boolean): Promise<void> => {
    const shown = context.getShown();
    const layer = shown?.meta.layers[shown.layer];
    if (!last || !layer) return handle.current?.focus();
    stepping.abort();
    const { signal } = (stepping = new AbortController());
    const { text, side, place } = last;
    const length = side === "query" ? layer.queries : layer.keys;
    const [found] = await findNextPlaces(context, side, text, length, place.first + (backward ? -1 : 1), backward, 1, signal);
    if (!found || signal.aborted) return;
    remember(text, side, found);
    context.pinSide(side, pickTokens(side, found));
  };
  const full: AskContext = { ...context, rememberPlace: remember };
  render(<Box context={full} box={context} handle={handle} />, slot);
  context.signal.addEventListener("abort", () => {
    stepping.abort();
    render(null, slot);
  });
  return {
    element: slot,
    focus: () => handle.current?.focus(),
    step: (backward) => void step(backward).catch((error: unknown) => isAbortError(error) || handle.current?.setStatus(describeError(error))),
    reset() {
      stepping.abort();
      last = null;
      handle.current?.setStatus("");
    },
  };
}

interface BoxOptions {
  readonly context: AskContext;
  readonly box: AskBoxContext;
  readonly handle: { current: BoxHandle | null };
}

interface Answer {
  readonly text: string;
  readonly list: readonly Suggestion[];
  readonly problem: string;
}

function Box({ context, box, handle }: BoxOptions): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  const [text, setText] = useState("");
  const [isOpen, setOpen] = useState(false);
  const [active, setActive] = useState(0);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [status, setStatus] = useState("");
  // Enter before the suggestions are there takes the first as soon as it is.
  const [wanted, setWanted] = useState<Side | null>(null);
  const isCurrent = answer?.text === text;
  const list = isOpen && answer ? answer.list : [];

  useImperativeHandle(handle, () => ({
    focus() {
      input.current?.focus();
      input.current?.select();
    },
    setStatus,
  }));
  useEffect(() => {
    if (!isOpen) return;
    const controller = new AbortController();
    const { signal } = controller;
    const load = async (): Promise<void> => {
      const found = await suggest(text, context, signal).then(
        (suggestions) => ({ text, list: suggestions, problem: "" }),
        (error: unknown) => ({ text, list: [], problem: describeError(error) }),
      );
      if (!signal.aborted) setAnswer(found);
    };
    const timer = setTimeout(() => void load(), PAUSE_MILLISECONDS);
    // The heads are still being scored while the reader types.
    const { kind } = parseQuestion(text);
    const unsubscribe = kind === "label" || kind === "score" ? context.ranking.subscribe(() => void load()) : () => undefined;
    return () => {
      clearTimeout(timer);
      unsubscribe();
      controller.abort();
    };
  }, [text, isOpen]);
  useEffect(() => {
    if (wanted !== null && isCurrent) choose(answer.list[0], wanted);
  }, [wanted, answer]);

  const close = (): void => {
    setOpen(false);
    setWanted(null);
  };
  const choose = (suggestion: Suggestion | undefined, side: Side): void => {
    setWanted(null);
    if (!suggestion) return;
    if (suggestion.fill !== undefined) return edit(suggestion.fill);
    close();
    // The status belongs to what was found before.
    setStatus("");
    box.returnFocus();
    suggestion.run(side);
  };
  const edit = (value: string): void => {
    setText(value);
    setActive(0);
    setOpen(true);
    setWanted(null);
  };
  const handleKey = (event: KeyboardEvent): void => {
    const side = event.shiftKey ? "key" : "query";
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!isOpen) setOpen(true);
      else if (list.length > 0) setActive((active + (event.key === "ArrowDown" ? 1 : -1) + list.length) % list.length);
    } else if (event.key === "Enter") {
      if (isOpen && isCurrent) choose(list[active], side);
      else {
        setOpen(true);
        setWanted(side);
      }
    } else if (event.key === "Escape") {
      close();
      box.returnFocus();
    } else return;
    event.preventDefault();
  };
  const groups = [...new Set(list.map(({ group }) => group))];
  const isEmpty = isOpen && isCurrent && list.length === 0;
  return (
    <>
      <input
        ref={input}
        class="ask-input"
        type="text"
        role="combobox"
        aria-label="Ask"
        aria-expanded={isOpen && list.length > 0}
        aria-controls={LISTED}
        aria-autocomplete="list"
        aria-activedescendant={list[active] ? `${LISTED}-${active}` : undefined}
        placeholder="Ask: words, L18H8, is -> cobalt, label:induction"
        title="Find words, heads and links, or give a command (Ctrl+K or /)"
        maxLength={200}
        autocomplete="off"
        spellcheck={false}
        value={text}
        onInput={({ currentTarget }) => {
          setStatus("");
          edit(currentTarget.value);
        }}
        onFocus={() => {
          box.prepare();
          setOpen(true);
        }}
        onClick={() => setOpen(true)}
        onBlur={close}
        onKeyDown={handleKey}
      />
      <span class="ask-status soft" aria-live="polite">
        {status || (isOpen ? "" : <kbd>Ctrl K</kbd>)}
      </span>
      {/* A press on the list must not take the focus from the field. */}
      <div class="ask-popup" hidden={!isOpen || (list.length === 0 && !isEmpty)} onPointerDown={(event) => event.preventDefault()}>
        <div role="listbox" id={LISTED} aria-label="Suggestions">
          {groups.map((group) => (
            <div role="group" aria-label={group} key={group}>
              <div class="ask-group soft" aria-hidden="true">
                {group}
              </div>
              {list.map((suggestion, index) =>
                suggestion.group === group ? (
                  <Option key={index} id={`${LISTED}-${index}`} suggestion={suggestion} isActive={index === active} choose={(side) => choose(suggestion, side)} />
                ) : null,
              )}
            </div>
          ))}
        </div>
        {isEmpty && <p class="soft ask-hint">{answer.problem || "Nothing found."}</p>}
        {list[active]?.isToken && (
          <p class="soft ask-hint">
            <kbd>Enter</kbd> pins it as query, <kbd>Shift Enter</kbd> as key
          </p>
        )}
      </div>
    </>
  );
}

interface OptionOptions {
  readonly id: string;
  readonly suggestion: Suggestion;
  readonly isActive: boolean;
  choose(side: Side): void;
}

function Option({ id, suggestion, isActive, choose }: OptionOptions): JSX.Element {
  const { text, detail, context } = suggestion;
  const row = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (isActive) row.current?.scrollIntoView({ block: "nearest" });
  }, [isActive]);
  return (
    <div ref={row} id={id} class="ask-option" role="option" aria-selected={isActive} onClick={({ shiftKey }) => choose(shiftKey ? "key" : "query")}>
      <bdi class="ask-text">{text}</bdi>
      {context && (
        <bdi class="ask-context soft">
          {formatContext(context[0])}
          <strong>{formatContext(context[1])}</strong>
          {formatContext(context[2])}
        </bdi>
      )}
      <span class="ask-detail soft">{detail}</span>
    </div>
  );
}

/** One line, with its spaces. */
function formatContext(text: string): string {
  return text === "" ? "" : formatRunningText(text.replace(/\s+/gu, " "));
}
