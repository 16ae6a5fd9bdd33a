/** What the browser remembers of its reader from visit to visit: yes or no, by name. */

export function remembered(name: string): boolean {
  try {
    return localStorage.getItem(`attnscope.${name}`) !== null;
  } catch {
    return false; // storage refused, as in private windows: nothing is known
  }
}

export function remember(name: string, yes: boolean): void {
  try {
    if (yes) localStorage.setItem(`attnscope.${name}`, "yes");
    else localStorage.removeItem(`attnscope.${name}`);
  } catch {
    // Not remembered then; the caller keeps it for this visit.
  }
}
