/** The open chat: its messages, its settings, and the request that runs. */

import { batch, computed, effect, signal } from "@preact/signals";
import { get, streamEvents } from "./api.js";
import { readItem, writeItem } from "./browser_storage.js";
import { makeRequest, NUMBERS } from "./chat_request.js";
import * as store from "./chat_store.js";

const CHAT_ITEM = "corral.chat"; // the tab's chat, and what is typed
const SETTINGS_ITEM = "corral.chat.settings";
const PRESETS_ITEM = "corral.chat.presets";
const SAVE_INTERVAL_MS = 1000;
const DEFAULTS = { model: "", system: "", effort: "", tools: "", schema: "", search: "", servers: [], extra: "", ...Object.fromEntries(NUMBERS.map(name => [name, ""])) };
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
/** The messages of the branch that is shown. */
export const messages = computed(() => pathTo(chat.value.leaf, nodes.value));
/** The messages that follow each message, or none (null). */
const children = computed(() => Map.groupBy(nodes.value, node => node.parent));
/** What is typed, and attached: `{text, attachments}`. */
export const draft = signal({ text: stored.draft ?? "", attachments: [] });
export const settings = signal({ ...DEFAULTS, ...readItem("localStorage", SETTINGS_ITEM) });
/** System messages by name. */
export const presets = signal(readItem("localStorage", PRESETS_ITEM) ?? {});
export const models = signal(null);
export const modelsError = signal(null);
/** Whether the list of models is still read, so that a form cannot name one yet. */
export const areModelsLoading = computed(() => !models.value && !modelsError.value);
/** The model of the next request. */
export const model = computed(() => models.value?.find(each => each.id === settings.value.model) ?? models.value?.[0]);
/** The running request, `{controller, update}`, or null. `update` shows what has come since the last frame. */
export const running = signal(null);
/** Whether the open chat is stored; it is with its first message, where the browser has room. */
let isStored = false;
let ending = null; // an answer that has ended, until it is stored
let asked = 0; // how often another chat was asked for
let shown = 0; // which of these is shown: none that was asked for before comes after it

restore().finally(() => effect(() => { writeItem("sessionStorage", CHAT_ITEM, { id: chat.value.id, draft: draft.value.text }); }));
effect(() => { writeItem("localStorage", SETTINGS_ITEM, settings.value); });
effect(() => { writeItem("localStorage", PRESETS_ITEM, presets.value); });
store.watchChats(id => { if (id === chat.value.id) readAgain(); });
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

export const setSetting = (name, value) => { settings.value = { ...settings.value, [name]: value }; };

/** Keep what is not stored yet when the page is left: nothing but the session's storage is written in time. */
function leave() {
  running.value?.update(); // a hidden tab has no frames
  const answer = running.value ? { ...messages.value.at(-1), state: "stopped" } : ending;
  if (!answer) return;
  writeItem("sessionStorage", CHAT_ITEM, { id: chat.value.id, draft: draft.value.text, answer });
  stop();
}

/** Open the chat that the tab had before it was reloaded. */
async function restore() {
  const number = ++asked;
  if (stored.answer) await store.updateChat(stored.answer.chat, {}, [stored.answer]);
  if (stored.id) await openChat(stored.id, number);
}

/** Show a stored chat. What another tab was generating when it was closed has stopped. */
export async function openChat(id, number = ++asked) {
  const isOpen = id === chat.value.id;
  const found = isOpen || await store.readChat(id).catch(() => null);
  if (!found || number < shown) return;
  shown = number;
  if (isOpen) return;
  stop();
  isStored = true;
  batch(() => {
    chat.value = found.chat;
    nodes.value = found.nodes.map(node => node.state === "running" ? { ...node, state: "stopped" } : node);
  });
}

/** Show what another tab has changed in the open chat: the branch that is shown goes on. */
async function readAgain() {
  const { id } = chat.value;
  const found = await store.readChat(id).catch(() => undefined);
  if (found === undefined || chat.value.id !== id) return;
  if (!found) {
    startChat(); // it was deleted
    return;
  }
  const { leaf } = chat.value;
  const own = new Map(nodes.value.map(node => [node.id, node]));
  const isAnswered = found.nodes.some(node => node.parent === leaf);
  const keep = node => running.value ? own.get(leaf) : isAnswered ? node : withTyped(node, own.get(leaf));
  const all = found.nodes.map(node => node.id === leaf ? keep(node) : node);
  for (const node of found.nodes) own.delete(node.id);
  all.push(...own.values()); // not stored yet, or for want of room
  const isNewer = !running.value && pathTo(found.chat.leaf, all).some(node => node.id === leaf);
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
  stop();
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
  let leaf = children.value.get(message.parent)[at];
  for (let next = leaf; next; next = children.value.get(leaf.id)?.at(-1)) leaf = next;
  chat.value = { ...chat.value, leaf: leaf.id };
  save(chat.value.id, { leaf: leaf.id }, []);
}

/** Set the output of a tool call of a message. */
export function setOutput(message, callId, output) {
  const calls = message.calls.map(call => call.id === callId ? { ...call, output } : call);
  put({ ...message, calls });
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

export function stop() {
  running.value?.controller.abort();
  running.value = null;
}

/** Generate the next message of the model, and show and store it while it arrives. */
export async function generate() {
  stop();
  const controller = new AbortController();
  const before = messages.value;
  let answer = { ...newMessage("assistant", chat.value.leaf), reasoning: "", calls: [], searches: [], problems: [], state: "running", error: null, timings: null };
  let frame = 0;
  const startedAt = performance.now();
  let savedAt = startedAt;
  const isShown = () => running.value?.controller === controller;
  const update = () => { frame = 0; if (isShown()) put(answer); };
  batch(() => { running.value = { controller, update }; show(answer); });
  shown = ++asked;
  const { title, leaf, changedAt } = chat.value;
  save(answer.chat, { title, leaf, changedAt }, [...before.slice(-1), answer]); // the last one with the outputs of its calls
  try {
    if (!models.value) await loadModels(); // a message sent at once must name a model too
    const { path, body, add } = makeRequest(model.value?.id, settings.value, before, chat.value.approved);
    for await (const { data } of streamEvents("POST", path, { body, signal: controller.signal })) {
      answer = add(answer, data);
      if (answer.text || answer.reasoning) answer.firstMs ??= performance.now() - startedAt;
      frame ||= requestAnimationFrame(update);
      if (performance.now() - savedAt < SAVE_INTERVAL_MS) continue;
      savedAt = performance.now();
      save(answer.chat, {}, [answer]);
    }
    answer = { ...answer, state: "done" };
  } catch (problem) {
    answer = { ...answer, ...(controller.signal.aborted ? { state: "stopped" } : { state: "failed", error: problem.message }) };
  }
  cancelAnimationFrame(frame);
  ending = answer;
  batch(() => {
    if (chat.value.id === answer.chat) put(answer);
    if (isShown()) running.value = null;
  });
  await save(answer.chat, {}, [answer]);
  if (ending === answer) ending = null;
}
