/** Parts that all views share: lists, forms, tables, errors, times and sizes. */

import { signal } from "@preact/signals";
import htm from "htm";
import { h } from "preact";
import { useCallback, useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { get, isAway } from "./api.js";

export const html = htm.bind(h);

/** The last message for the user, announced to screen readers. */
export const notice = signal(null);
let noticeTimer;

/** Show a message for some seconds; an error until the next one. */
export function notify(text, isError = false) {
  clearTimeout(noticeTimer);
  notice.value = { text, isError };
  if (!isError) noticeTimer = setTimeout(() => { notice.value = null; }, 5000);
}

export function Notice() {
  const { text, isError } = notice.value ?? {};
  return html`<div class="notice" role="status" aria-live="polite">
    ${text && html`<p class=${isError ? "error" : "success"}>${text}
      <button class="plain" onClick=${() => { notice.value = null; }} aria-label="Dismiss the message">✕</button></p>`}
  </div>`;
}

/**
 * Load data for a view: `{data, error, reload, replace}`. Loads again when one of `inputs` changes. What is shown stays while
 * the server cannot be reached.
 */
export function useLoad(load, inputs) {
  const [state, setState] = useState({});
  const latest = useRef(0);
  const current = useRef(load);
  current.current = load; // also for a caller that holds an earlier `reload`
  const loaded = useMemo(() => ({ isShown: false, isBroken: false }), inputs);
  const reload = useCallback(async () => {
    const number = ++latest.current;
    let next;
    try {
      next = { data: await current.current() };
    } catch (error) {
      next = { error };
    }
    if (number !== latest.current) return;
    const isBroken = loaded.isShown && next.error && isAway(next.error);
    if (isBroken) notify(next.error.message, true);
    else setState(next);
    if (loaded.isBroken && !isBroken) notify("The server can be reached again.");
    Object.assign(loaded, { isBroken, isShown: isBroken || !next.error });
  }, inputs);
  const replace = useCallback(data => { latest.current++; setState({ data }); }, []);
  useEffect(() => { reload(); return () => { latest.current++; }; }, [reload]);
  return { ...state, reload, replace };
}

/** Call a function again and again, `seconds` after it has returned, while the view is shown. */
export function usePolling(poll, seconds, isActive = true) {
  useEffect(() => {
    if (!isActive) return undefined;
    let timer;
    let isShown = true;
    const tick = async () => {
      if (!document.hidden) await poll();
      if (isShown) timer = setTimeout(tick, seconds * 1000);
    };
    timer = setTimeout(tick, seconds * 1000);
    return () => { isShown = false; clearTimeout(timer); };
  }, [poll, seconds, isActive]);
}

/** A list of objects that is read page by page: `{rows, error, hasMore, more, reload}`. A reload reads as many pages as are shown. */
export function useList(path, query = {}, limit = 50) {
  const inputs = JSON.stringify([path, query]);
  const shown = useRef({});
  if (shown.current.inputs !== inputs) shown.current = { inputs, pages: [] };
  const readPage = after => get(path, { limit, ...query, after });
  const { data, error, reload, replace } = useLoad(async () => {
    const pages = [await readPage()];
    while (pages.at(-1).has_more && pages.length < shown.current.pages.length) pages.push(await readPage(pages.at(-1).last_id));
    return pages;
  }, [inputs]);
  const pages = data ?? [];
  if (data) shown.current.pages = data;
  const last = pages.at(-1);
  const more = async () => replace([...pages, await readPage(last.last_id)]);
  return { rows: data && pages.flatMap(page => page.data), error, hasMore: last?.has_more ?? false, more, reload };
}

/** Whether there is room for what is beside the chat; else it lies over the chat. */
export const hasRoom = () => matchMedia("(min-width: 1001px)").matches; // as in app.css

/** The name of the panels beside the chat, of which one is open where there is no room. */
export const SIDE = "side";

/** The id of the message box of the chat. */
export const MESSAGE_BOX = "message-box";

/** Whether the device is a phone or the like, where Enter is a new line, and the focus in a field opens a keyboard. */
export const IS_TOUCH = matchMedia("(pointer: coarse)").matches;

/** As a `ref`: the element has the focus when it appears. */
export const focus = element => element?.focus();

/** A handler of keys that cancels by Escape, which stops no answer then. */
export function onEscape(cancel) {
  return event => {
    if (event.key !== "Escape") return;
    event.preventDefault();
    cancel();
  };
}

/** Copy a text; browsers give a page without HTTPS only the old way. */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else {
    const box = Object.assign(document.createElement("textarea"), { value: text, className: "hidden" });
    document.body.append(box);
    box.select();
    const isCopied = document.execCommand("copy");
    box.remove();
    if (!isCopied) throw new Error("The browser does not let this page copy.");
  }
  notify("Copied.");
}

export function ErrorBox({ error }) {
  if (!error) return null;
  const isRights = error.status === 403;
  return html`<p class="error box" role="alert">${error.message}
    ${isRights && html` <span>This view needs a key with scope <code>admin</code>.</span>`}</p>`;
}

/** Says that a followed stream waits for the network. */
export const Broken = ({ isShown }) => html`<p class="muted" role="status">${isShown && "The connection is broken. This goes on when the server can be reached again."}</p>`;

/** A button that runs an asynchronous action, does nothing meanwhile, and reports a failure. It keeps the focus. */
export function Action({ run, confirm, children, class: kind = "", ...rest }) {
  const [isBusy, setBusy] = useState(false);
  const act = async event => {
    event.preventDefault();
    if (isBusy || (confirm && !window.confirm(confirm))) return;
    setBusy(true);
    try {
      await run();
    } catch (error) {
      notify(error.message, true);
    }
    setBusy(false);
  };
  return html`<button type="button" class=${kind} aria-busy=${isBusy} onClick=${act} ...${rest}>${children}</button>`;
}

/**
 * A form whose fields have names. `onSubmit` gets their values, and options for the request that sends a file, whose progress
 * is shown and which can be cancelled. A failure is shown in the form. Then they have their default values again; what was
 * chosen from a list stays. It waits while a list to choose from `isLoading`.
 */
export function Form({ onSubmit, submit, children, label, isLoading = false }) {
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [sent, setSent] = useState(null); // how much of a file, and what cancels that
  const act = async event => {
    event.preventDefault();
    const form = event.currentTarget;
    const sending = new AbortController();
    const onProgress = (bytes, all) => setSent({ bytes, all, cancel: () => sending.abort() });
    setBusy(true);
    setError(null);
    try {
      await onSubmit(Object.fromEntries(new FormData(form)), { signal: sending.signal, onProgress });
      const chosen = [...form.querySelectorAll("select")].map(list => [list, list.value]);
      form.reset();
      for (const [list, value] of chosen) list.value = value;
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
    setSent(null);
  };
  return html`<form class="fields" onSubmit=${act} aria-label=${label}>
    ${children}
    <${ErrorBox} error=${error} />
    ${sent && html`<${Meter} label="Sent" value=${sent.bytes} max=${sent.all} text=${`${formatBytes(sent.bytes)} of ${formatBytes(sent.all)}`} />`}
    <div class="row"><button class="primary" disabled=${isBusy || isLoading} aria-busy=${isBusy || isLoading}>${submit}</button>
      ${sent && html`<button type="button" onClick=${sent.cancel}>Cancel</button>`}</div>
  </form>`;
}

/** A labelled input, or the control that is its child. */
export function Field({ label, hint, children, ...input }) {
  const id = useId();
  const hintId = hint ? `${id}-hint` : undefined;
  const control = children
    ? { ...children, props: { ...children.props, id, "aria-describedby": hintId } }
    : html`<input id=${id} aria-describedby=${hintId} ...${input} />`;
  return html`<div class="field"><label for=${id}>${label}</label>${control}
    ${hint && html`<small id=${hintId}>${hint}</small>`}</div>`;
}

/** A table. `columns` are `[title, cell(row), isNumber]`; a wide one scrolls inside its frame. */
export function Table({ caption, columns, rows, error, empty = "Nothing here yet.", hasMore, more }) {
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!rows) return html`<p class="muted" role="status">Loading…</p>`;
  if (!rows.length) return html`<p class="muted">${empty}</p>`;
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0"><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map(([title, , isNumber]) => html`<th scope="col" class=${isNumber ? "number" : ""}>${title || html`<span class="hidden">Actions</span>`}</th>`)}</tr></thead>
    <tbody>${rows.map(row => html`<tr key=${row.id}>${columns.map(([, cell, isNumber]) => html`<td class=${isNumber ? "number" : ""}>${cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>
  ${hasMore && html`<p><${Action} run=${more}>Show more<//></p>`}`;
}

/** The status of an object, coloured by what it means. */
export function Status({ value }) {
  const good = ["completed", "ready", "processed", "active", "loaded", "up"];
  const bad = ["failed", "expired", "error", "cancelled", "incomplete", "revoked", "down"];
  const kind = good.includes(value) ? "good" : bad.includes(value) ? "bad" : "neutral";
  return html`<span class=${`status ${kind}`}>${String(value).replaceAll("_", " ")}</span>`;
}

const TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** A time in unix seconds, or as ISO text. */
export function Time({ value }) {
  if (!value) return html`<span class="muted">–</span>`;
  const date = new Date(typeof value === "number" ? value * 1000 : value);
  return html`<time datetime=${date.toISOString()}>${TIME.format(date)}</time>`;
}

export function Json({ value, label }) {
  return html`<pre tabindex="0" aria-label=${label}>${typeof value === "string" ? value : JSON.stringify(value, null, 2)}</pre>`;
}

/** A meter with its value as text, such as "3 of 8". */
export function Meter({ label, value, max, text }) {
  return html`<div class="meter"><span>${label}</span>
    <progress max=${max || 1} value=${Math.min(value, max || 1)} aria-label=${label}></progress>
    <span class="number">${text ?? `${formatNumber(value)} of ${formatNumber(max)}`}</span></div>`;
}

export const formatNumber = value => Number(value ?? 0).toLocaleString();

export function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = bytes > 0 ? Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10)) : 0;
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

/** The objects in a JSON file; none in an empty one, as where none was chosen. Throws an Error that names the field. */
export async function readArray(file, name) {
  const found = file.size ? parseJson(await file.text(), name) : [];
  if (!Array.isArray(found) || found.some(each => each?.constructor !== Object)) throw new Error(`${name}: not a JSON array of objects`);
  return found;
}

/** Parse JSON of a form field. Throws an error that names the field. */
export function parseJson(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: not valid JSON (${error.message})`);
  }
}
