/** The open chat: its messages, its settings, and the request that runs. */

import { batch, computed, effect, signal } from "@preact/signals";
import { get, streamEvents } from "./api.js";
import { readItem, writeItem } from "./browser_storage.js";
import { isHosted, makeRequest, NUMBERS } from "./chat_request.js";
import * as store from "./chat_store.js";

const CHAT_ITEM = "corral.chat"; // the tab's chat, and what is typed and edited
const SETTINGS_ITEM = "corral.chat.settings";
const PRESETS_ITEM = "corral.chat.presets";
const SAVE_INTERVAL_MS = 1000;
const DEFAULTS = { model: "", system: "", effort: "", tools: "", schema: "", search: "", servers: [], extra: "", ...Object.fromEntries(NUMBERS.map(name => [name, ""])) };
const UNFINISHED = { error: null, finish: null, firstMs: null, timings: null, usage: null }; // of an answer
const stored = readItem("sessionStorage", CHAT_ITEM) ?? {};

/**
 * The open chat: `{id, title, isPinned, changedAt, leaf, approved}`; stored with its first message. `leaf` is the last
 * message, `approved` are the tools of MCP servers that need no approval in it: `{label: [name]}`.
 */
export const chat = signal(newChat());
/**
 * Messages of all branches of the open chat, oldest first. All have `{id, chat, parent, at, text}`.
 * Of the user: `{role: "user", attachments}`; of the model: `{role: "assistant", reasoning,
 * calls: [{id, name, arguments, output}], searches, problems, state, error, timings}`, where `state` is
 * "running", "done", "stopped" or "failed", `searches` are the texts that the server searched for, and `problems` those of
 * MCP servers. A call of one of these has its label as `server`, and `error`; `output` is null until it has ended. One that
 * waits for approval has `approval`: "asked", "approved" or "refused".
 */
const nodes = signal([]);
/** An answer that grows, in place of what `nodes` has of it; these change only as often as it is stored. */
const growing = signal(null);
const branch = computed(() => pathTo(chat.value.leaf, nodes.value));
/** The messages of the branch that is shown. */
export const messages = computed(() => {
  const answer = growing.value;
  return answer && branch.value.at(-1)?.id === answer.id ? branch.value.with(-1, answer) : branch.value;
});
/** The messages that follow each message, or none (null). */
const children = computed(() => Map.groupBy(nodes.value, node => node.parent));
/** What is typed, and attached: `{text, attachments, unread}`; `unread` are the files that are still read. */
export const draft = signal({ text: stored.draft ?? "", attachments: [], unread: [] });
/** The texts of messages that are edited, by id. */
export const edits = signal(stored.edits ?? {});
export const settings = signal({ ...DEFAULTS, ...readItem("localStorage", SETTINGS_ITEM) });
/** System messages by name. */
export const presets = signal(readItem("localStorage", PRESETS_ITEM) ?? {});
export const models = signal(null);
export const modelsError = signal(null);
/** Whether the list of models is still read, so that a form cannot name one yet. */
export const areModelsLoading = computed(() => !models.value && !modelsError.value);
/** The model of the next request. */
export const model = computed(() => models.value?.find(each => each.id === settings.value.model) ?? models.value?.[0]);
/** The running requests by the id of their chat; they go on while another chat is open. */
const runs = signal(new Map());
export const isRunning = id => runs.value.has(id);
/** Whether the open chat is stored; it is with its first message, where the browser has room. */
let isStored = false;
/**
 * The requests whose answers are not stored as a whole: `{controller, answer, begun}`, where `begun` is the chat with its
 * messages, `{chat, nodes}`, until the browser has stored it.
 */
const unstored = new Set();
let isLeaving = false; // Firefox breaks connections before the page is hidden
let asked = 0; // how often another chat was asked for
let shown = 0; // which of these is shown: none that was asked for before comes after it

restore().finally(() => effect(() => { writeItem("sessionStorage", CHAT_ITEM, typed()); }));
effect(() => { writeItem("localStorage", SETTINGS_ITEM, settings.value); });
effect(() => { writeItem("localStorage", PRESETS_ITEM, presets.value); });
store.watchChats((id, gone) => {
  if (id === chat.value.id) readAgain(gone);
  else if (isRunning(id)) store.readChat(id).then(found => { if (!found) stop(id); }, () => {});
});
addEventListener("beforeunload", () => { isLeaving = true; });
addEventListener("pageshow", () => { isLeaving = false; });
addEventListener("pagehide", leave);
addEventListener("storage", ({ key }) => { if (key === PRESETS_ITEM) presets.value = readItem("localStorage", PRESETS_ITEM) ?? {}; });

function newId() {
  return `${Date.now()}-${Math.random()}`; // crypto.randomUUID needs HTTPS
}

function newChat() {
  return { id: newId(), title: "", isPinned: false, changedAt: Date.now(), leaf: null, approved: {} };
}

/** Read the list of models; a failure is in `modelsError`. */
export async function loadModels() {
  modelsError.value = null;
  try {
    models.value = (await get("v1/models")).data;
  } catch (error) {
    modelsError.value = error;
  }
}

/** Set all but the model to what it is at first. */
export const resetSettings = () => { settings.value = { ...DEFAULTS, model: settings.value.model }; };
export const setSetting = (name, value) => { settings.value = { ...settings.value, [name]: value }; };

/** The open chat, and what is typed in this tab. */
const typed = () => ({ id: chat.value.id, draft: draft.value.text, edits: edits.value });

/** Edit a message, with this text; undefined ends that. */
export function edit(id, text) {
  const { [id]: _, ...others } = edits.value;
  edits.value = text === undefined ? others : { ...others, [id]: text };
}

/** Keep what is not stored yet when the page is left: nothing but the session's storage is written in time. */
function leave() {
  if (!unstored.size) return;
  const left = [...unstored].map(({ answer, begun }) => ({ begun, answer: stopped(answer) }));
  writeItem("sessionStorage", CHAT_ITEM, { ...typed(), left: left.map(({ answer }) => ({ answer })) });
  writeItem("sessionStorage", CHAT_ITEM, { ...typed(), left }); // files in messages may have no room there
  for (const id of runs.value.keys()) stop(id);
}

const stopped = message => message.state === "running" ? { ...message, state: "stopped" } : message;

/** Store what was left, and open the chat that the tab had before it was reloaded. */
async function restore() {
  const number = ++asked;
  for (const { answer, begun } of stored.left ?? []) {
    await (begun ? store.addChat(begun.chat, [...begun.nodes, answer]) : store.updateChat(answer.chat, {}, [answer]));
  }
  if (stored.id) await openChat(stored.id, number);
}

/** Show a stored chat. What another tab was generating when it was closed has stopped. */
export async function openChat(id, number = ++asked) {
  const isOpen = id === chat.value.id;
  const found = isOpen || await store.readChat(id).catch(() => null);
  if (!found || number < shown) return;
  shown = number;
  if (isOpen) return;
  isStored = true;
  const answer = runs.value.get(id)?.answer;
  batch(() => {
    chat.value = found.chat;
    nodes.value = found.nodes.map(node => node.id === answer?.id ? answer : stopped(node));
  });
}

/** Show what another tab has changed in the open chat: the branch that is shown goes on. */
async function readAgain(gone) {
  const { id } = chat.value;
  const found = await store.readChat(id).catch(() => undefined);
  if (found === undefined || chat.value.id !== id) return;
  if (!found) {
    stop();
    startChat(); // it was deleted
    return;
  }
  const { leaf } = chat.value;
  const isGone = gone.includes(leaf);
  if (isGone) stop();
  forget(new Set(gone));
  const own = new Map(nodes.value.map(node => [node.id, node]));
  for (const each of gone) own.delete(each);
  const isAnswered = found.nodes.some(node => node.parent === leaf);
  const keep = node => isRunning(id) ? own.get(leaf) : isAnswered ? node : withTyped(node, own.get(leaf));
  const all = found.nodes.map(node => node.id === leaf ? keep(node) : node);
  for (const node of found.nodes) own.delete(node.id);
  all.push(...own.values()); // not stored yet, or for want of room
  const isNewer = isGone || !isRunning(id) && pathTo(found.chat.leaf, all).some(node => node.id === leaf);
  batch(() => {
    nodes.value = all;
    chat.value = isNewer ? found.chat : { ...found.chat, leaf };
  });
}

/** Store messages of a chat that are new or changed; of the open one also those that had no room before. */
async function save(id, changes, changed) {
  const isNew = id === chat.value.id && !isStored;
  const isKept = await (isNew ? store.addChat(chat.value, nodes.value) : store.updateChat(id, changes, changed));
  if (id === chat.value.id) isStored = isKept;
}

/** The messages from the first one to `leaf`. */
function pathTo(leaf, all) {
  const byId = new Map(all.map(node => [node.id, node]));
  const path = [];
  for (let node = byId.get(leaf); node; node = byId.get(node.parent)) path.push(node);
  return path.reverse();
}

/** Begin a chat, which has these messages, one after the other. */
export function startChat(title = "", texts = []) {
  const next = { ...newChat(), title };
  const made = [];
  for (const message of texts) {
    made.push({ ...message, id: newId(), chat: next.id, parent: next.leaf, at: made.length });
    next.leaf = made.at(-1).id;
  }
  shown = ++asked;
  isStored = false;
  batch(() => { chat.value = next; nodes.value = made; });
  if (made.length) save(next.id, {}, made);
}

/** Change the title of a chat, or whether it is pinned. */
export async function changeChat(changed, changes) {
  if (changed.id === chat.value.id) chat.value = { ...chat.value, ...changes };
  await store.updateChat(changed.id, changes);
}

export async function deleteChat({ id }) {
  stop(id);
  if (id === chat.value.id) startChat();
  await store.deleteChat(id);
}

/** Add a message to the open chat, or replace the one with its id. */
function put(message) {
  const at = nodes.value.findLastIndex(node => node.id === message.id);
  nodes.value = at < 0 ? [...nodes.value, message] : nodes.value.with(at, message);
}

/** Show a message as the last one. */
function show(message) {
  batch(() => {
    put(message);
    chat.value = { ...chat.value, leaf: message.id, changedAt: Date.now() };
  });
}

function newMessage(role, parent) {
  const after = nodes.value.at(-1)?.at ?? 0;
  return { id: newId(), chat: chat.value.id, parent, at: Math.max(Date.now(), after + 1), role, text: "" };
}

/** Send a message of the user after the message `parent`, and answer it. */
export function send(text, attachments, parent = chat.value.leaf) {
  const message = { ...newMessage("user", parent), text, attachments };
  if (!chat.value.title) chat.value = { ...chat.value, title: [...text].slice(0, 80).join("") || attachments[0]?.name || "" };
  show(message);
  return generate();
}

/**
 * Answer again what a message answers; the message stays as another version. What was approved is asked for again, since
 * an approval counts once.
 */
export function regenerate(message) {
  stop();
  const before = messages.value.slice(0, messages.value.findIndex(({ id }) => id === message.id));
  while (before.at(-1)?.calls?.some(call => call.approval)) before.pop();
  chat.value = { ...chat.value, leaf: before.at(-1)?.id ?? null };
  return generate();
}

/** The versions of a message: `{at, of}`, of which `at` is the shown one, from 0. */
export function versions(message) {
  const all = children.value.get(message.parent) ?? [message];
  return { at: all.findIndex(each => each.id === message.id), of: all.length };
}

/** Show another version of a message, with what follows it. */
export function showVersion(message, at) {
  stop();
  const leaf = newestAfter(children.value.get(message.parent)[at].id);
  chat.value = { ...chat.value, leaf };
  save(chat.value.id, { leaf }, []);
}

/** The id of the newest message after one, of its newest versions. */
function newestAfter(id) {
  for (let next = id; next; next = children.value.get(id)?.at(-1)?.id) id = next;
  return id;
}

/** The ids of a message and of all that follow it. */
export function following(message) {
  const ids = new Set([message.id]);
  for (const node of nodes.value) if (ids.has(node.parent)) ids.add(node.id); // these are oldest first
  return ids;
}

/** Delete a message with all that follow it. Another version of it is shown then, if there is one. */
export async function deleteMessage(message) {
  stop();
  const gone = following(message);
  forget(gone);
  let leaf = children.value.get(message.parent).findLast(each => each.id !== message.id)?.id ?? message.parent;
  if (leaf !== message.parent) leaf = newestAfter(leaf);
  batch(() => {
    nodes.value = nodes.value.filter(node => !gone.has(node.id));
    chat.value = { ...chat.value, leaf };
  });
  if (isStored) await store.updateChat(chat.value.id, { leaf }, [], [...gone]);
}

/** Keep nothing more of answers that were deleted. */
function forget(gone) {
  for (const run of unstored) if (gone.has(run.answer.id)) unstored.delete(run);
}

/** Show another version of an answer, with a text of the user. */
export function addVersion(message, text) {
  stop();
  const version = { ...message, ...newMessage("assistant", message.parent), text, ...UNFINISHED, state: "done" };
  show(version);
  return save(version.chat, { leaf: version.id }, [version]);
}

/** Set the output of a tool call of a message. */
export function setOutput({ id }, callId, output) {
  const message = nodes.value.find(node => node.id === id);
  put({ ...message, calls: message.calls.map(call => call.id === callId ? { ...call, output } : call) });
}

/** A stored message with the outputs of calls that were typed in this tab, and are not stored yet. */
function withTyped(message, own) {
  const typed = new Map(own?.calls?.map(call => [call.id, call.output]));
  return message.calls ? { ...message, calls: message.calls.map(call => call.server ? call : { ...call, output: typed.get(call.id) || call.output }) } : message;
}

/**
 * Approve or refuse a call of an MCP server, or approve all of its tool in this chat. The last decision answers. A call is
 * decided once, also where two tabs show it.
 */
export async function decide({ id: asking, chat: asked }, { id, server, name }, approval, isForAll = false) {
  const isMeant = call => call.approval === "asked" && (call.id === id || (isForAll && call.server === server && call.name === name));
  const change = message => message?.calls.some(isMeant)
    ? { ...message, calls: message.calls.map(call => isMeant(call) ? { ...call, approval } : call) } : null;
  const own = () => nodes.value.find(node => node.id === asking);
  const decideHere = () => change(own());
  const message = isStored ? await store.changeMessage(asking, change).catch(decideHere) : decideHere();
  if (!message || chat.value.id !== asked) return; // the button was pressed twice, or in another tab before
  put(withTyped(message, own()));
  const { approved = {} } = chat.value;
  if (isForAll) chat.value = { ...chat.value, approved: { ...approved, [server]: [...(approved[server] ?? []), name] } };
  if (isForAll || !isStored) save(asked, { approved: chat.value.approved }, []);
  if (message.calls.every(call => call.approval !== "asked" && call.server)) generate();
}

/** Stop the answer of a chat. */
export function stop(id = chat.value.id) {
  runs.value.get(id)?.controller.abort();
  runs.value = new Map([...runs.value].filter(([running]) => running !== id));
}

/** Whether an answer that did not come to its end can be continued. The server continues texts that no tool is part of. */
export const canContinue = ({ text, calls, state, finish }) => text && !calls.length && (state !== "done" || finish === "length") && !isHosted(settings.value);

/**
 * Generate the next message of the model, or more of the last one, and show and store it while it arrives, also while another
 * chat is open.
 */
export async function generate(continued = null) {
  stop();
  const controller = new AbortController();
  const before = messages.value;
  const answer = continued ?? { ...newMessage("assistant", chat.value.leaf), reasoning: "", calls: [], searches: [], problems: [] };
  const run = { controller, answer: { ...answer, ...UNFINISHED, state: "running" } };
  const { chat: id } = answer;
  const begin = answer.text.length + answer.reasoning.length;
  const isShown = () => unstored.has(run) && chat.value.id === id;
  const end = changes => batch(() => {
    run.answer = { ...run.answer, ...changes };
    if (growing.value?.id === answer.id) growing.value = null;
    if (isShown()) put(run.answer);
  });
  unstored.add(run);
  const startedAt = performance.now();
  let savedAt = startedAt;
  batch(() => { runs.value = new Map(runs.value).set(id, run); show(run.answer); });
  shown = ++asked;
  if (!isStored) run.begun = { chat: chat.value, nodes: nodes.value };
  const { title, leaf, changedAt } = chat.value;
  save(id, { title, leaf, changedAt }, [...before.slice(-1), run.answer]) // the last one with the outputs of its calls
    .then(() => { run.begun = null; });
  try {
    if (!models.value) await loadModels(); // a message sent at once must name a model too
    const { path, body, add } = makeRequest(model.value?.id, settings.value, before, chat.value.approved);
    for await (const { data } of streamEvents("POST", path, { body, signal: controller.signal })) {
      const next = add(run.answer, data);
      const isFirst = !next.firstMs && next.text.length + next.reasoning.length > begin;
      run.answer = isFirst ? { ...next, firstMs: performance.now() - startedAt } : next;
      if (isShown()) growing.value = run.answer;
      if (performance.now() - savedAt < SAVE_INTERVAL_MS) continue;
      savedAt = performance.now();
      if (isShown()) put(run.answer);
      save(id, {}, [run.answer]);
    }
    end({ state: "done" });
  } catch (problem) {
    end(controller.signal.aborted || isLeaving ? { state: "stopped" } : { state: "failed", error: problem.message });
  }
  if (runs.value.get(id) === run) stop(id);
  if (unstored.has(run)) await save(id, {}, [run.answer]);
  unstored.delete(run);
}
