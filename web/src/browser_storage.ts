/** Small values that the browser keeps: for good in "local", until the tab is closed in "session". */

type Kind = "local" | "session";

const getStorage = (kind: Kind): Storage => (kind === "local" ? localStorage : sessionStorage);

/** Null where nothing is stored, or where storage is not allowed, as in private windows. */
export function loadItem(kind: Kind, name: string): string | null {
  try {
    return getStorage(kind).getItem(`attnscope.${name}`);
  } catch {
    return null;
  }
}

/** Null removes the item. Where storage is not allowed, nothing is kept. */
export function saveItem(kind: Kind, name: string, value: string | null): void {
  try {
    if (value === null) getStorage(kind).removeItem(`attnscope.${name}`);
    else getStorage(kind).setItem(`attnscope.${name}`, value);
  } catch {
    // The caller keeps the value for this visit.
  }
}
