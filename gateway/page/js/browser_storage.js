/** What the browser keeps, as JSON, in "sessionStorage" or "localStorage". Where it is full or switched off, nothing is kept. */

export function readItem(storage, name) {
  try {
    return JSON.parse(window[storage].getItem(name));
  } catch {
    return null;
  }
}

export function writeItem(storage, name, value) {
  try {
    window[storage].setItem(name, JSON.stringify(value));
  } catch {
    // It is forgotten at the next reload.
  }
}
