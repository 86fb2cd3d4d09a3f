/** The chat: messages with their reasoning and tool calls, and the composer. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { readAttachment } from "./attachments.js";
import { AskedCalls, MadeCalls } from "./chat_calls.js";
import { isMade } from "./chat_items.js";
import { ChatList } from "./chat_list.js";
import { ChatSettings } from "./chat_settings.js";
import * as chat from "./chat_state.js";
import { Markdown } from "./markdown.js";
import { canRecord, startRecording } from "./sound_recorder.js";
import { Transcript } from "./transcript.js";
import { Action, copyText, ErrorBox, focus, html, IS_TOUCH, MESSAGE_BOX, notify, onEscape } from "./ui.js";

const LONG_TEXT = 5000; // characters; a longer text that is pasted is attached
const SHOWN = 40; // messages that are shown at first, and more each time

export function ChatView({ id }) {
  const [limit, setLimit] = useState(SHOWN);
  const messages = chat.messages.value;
  const opened = chat.chat.value.id;
  const isRunning = chat.isRunning(opened);
  useEffect(() => { chat.loadModels(); }, []);
  useEffect(() => { if (id) chat.openChat(id); }, [id]);
  useEffect(() => { setLimit(SHOWN); }, [opened]);
  const address = messages.length ? `#/chat/${opened}` : "#/chat";
  useEffect(() => { history.replaceState(null, "", address); }, [address]); // for the way back to it
  useEffect(() => {
    const stop = event => { if (event.key === "Escape" && !event.defaultPrevented && !event.target.closest?.("dialog")) chat.stop(); };
    addEventListener("keydown", stop);
    return () => removeEventListener("keydown", stop);
  }, []);
  const shown = messages.slice(-limit);
  const last = messages.at(-1);
  return html`<div class="chat">
    <section class="talk" aria-label="Chat">
      <${Transcript} key=${opened} label="Messages" isBusy=${isRunning} first=${shown[0]?.id}
          hasOlder=${shown.length < messages.length} loadOlder=${async () => setLimit(limit + SHOWN)}>
        <${ErrorBox} error=${chat.modelsError.value} />
        ${!messages.length && html`<p class="muted hello">Ask ${chat.model.value?.id ?? "the model"} something.</p>`}
        ${shown.map(message => html`<${Message} key=${message.id} message=${message} isLast=${message === last} />`)}
      <//>
      <${Composer} isRunning=${isRunning} />
    </section>
    <aside class="side" aria-label="Chats and settings"><${ChatList} /><${ChatSettings} /></aside>
  </div>`;
}

/** A message, which is made again only when it changes. */
function Message({ message, isLast }) {
  return useMemo(() => html`<${message.role === "user" ? UserMessage : ModelMessage} message=${message} isLast=${isLast} />`, [message, isLast]);
}

/** Which version of a message is shown, and the others. */
function Versions({ message }) {
  const { at, of } = chat.versions(message);
  if (of < 2) return null;
  return html`<span class="versions" role="group" aria-label="Versions">
    <button type="button" class="plain" aria-label="Previous version" disabled=${at === 0} onClick=${() => chat.showVersion(message, at - 1)}>‹</button>
    <span class="muted">${at + 1} of ${of}</span>
    <button type="button" class="plain" aria-label="Next version" disabled=${at === of - 1} onClick=${() => chat.showVersion(message, at + 1)}>›</button></span>`;
}

function UserMessage({ message }) {
  const send = text => chat.send(text, message.attachments, message.parent);
  return html`<article class="message user" aria-label="You">
    <${Attachments} items=${message.attachments} />
    ${message.id in chat.edits.value ? html`<${Editor} message=${message} submit="Send again" change=${send} />`
      : html`<p class="text">${message.text}</p>
        <div class="tools"><${Versions} message=${message} /><${MessageActions} message=${message} /></div>`}
  </article>`;
}

/** Changes the text of a message, which makes another version of it. */
function Editor({ message: { id }, submit, change }) {
  const text = chat.edits.value[id];
  const close = () => chat.edit(id, undefined);
  const save = event => {
    event.preventDefault();
    close();
    change(text);
  };
  return html`<form class="fields" onSubmit=${save} onKeyDown=${onEscape(close)}>
    <textarea name="text" aria-label="Edit the message" rows="3" ref=${focus} required value=${text} onInput=${event => chat.edit(id, event.target.value)} />
    <div class="row"><button class="primary">${submit}</button><button type="button" onClick=${close}>Cancel</button></div></form>`;
}

function MessageActions({ message }) {
  const remove = async () => {
    const others = chat.following(message).size - 1;
    if (window.confirm(`Delete this message${others ? ` and ${others} after it` : ""}?`)) await chat.deleteMessage(message);
  };
  return html`${message.text && html`<${Action} class="plain" run=${() => copyText(message.text)}>Copy<//>`}
    <button class="plain" onClick=${() => chat.edit(message.id, message.text)}>Edit</button>
    <${Action} class="plain" run=${remove}>Delete<//>`;
}

function Attachments({ items, onRemove }) {
  if (!items.length) return null;
  return html`<ul class="attachments" aria-label="Attachments">${items.map(item => html`<li>
    ${item.kind === "image" ? html`<img src=${item.url} alt=${item.name} />`
      : item.kind === "audio" ? html`<audio controls src=${item.url} aria-label=${item.name}></audio>`
      : html`<span class="file">${item.name}</span>`}
    ${onRemove && html`<button type="button" class="plain" aria-label=${`Remove ${item.name}`} onClick=${() => onRemove(item)}>✕</button>`}
  </li>`)}</ul>`;
}

function ModelMessage({ message, isLast }) {
  const isRunning = message.state === "running";
  const made = message.calls.filter(isMade);
  if (message.id in chat.edits.value) {
    const change = text => chat.addVersion(message, text);
    return html`<article class="message model" aria-label="Model"><${Editor} message=${message} submit="Save" change=${change} /></article>`;
  }
  return html`<article class="message model" aria-label="Model">
    ${message.reasoning && html`<details class="reasoning"><summary>Reasoning</summary><p class="text">${message.reasoning}</p></details>`}
    ${message.searches?.length > 0 && html`<p class="muted">Searched: ${message.searches.join("; ")}</p>`}
    ${message.problems?.map(each => html`<p class="muted">${each}</p>`)}
    ${made.length > 0 && html`<${MadeCalls} calls=${made} isRunning=${isRunning} />`}
    ${message.text && html`<${Markdown} text=${message.text} />`}
    ${isRunning && html`<span class="cursor" role="img" aria-label="Generating"></span>`}
    ${made.length < message.calls.length && html`<${AskedCalls} message=${message} isLast=${isLast && !isRunning} />`}
    ${message.error && html`<${ErrorBox} error=${{ message: message.error }} />`}
    ${!isRunning && html`<div class="tools"><${Versions} message=${message} />
      <button class="plain" onClick=${() => chat.regenerate(message)}>Regenerate</button>
      ${isLast && chat.canContinue(message) && html`<button class="plain" onClick=${() => chat.generate(message)}>Continue</button>`}
      <${MessageActions} message=${message} />
      <span class="muted">${describe(message)}</span></div>`}
  </article>`;
}

function describe({ state, finish, firstMs, usage, timings }) {
  const facts = [];
  if (state === "stopped") facts.push("stopped");
  if (finish === "length") facts.push("ended at the token limit");
  if (usage) facts.push(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens`);
  if (firstMs) facts.push(`${(firstMs / 1000).toFixed(2)} s to the first token`);
  if (timings?.predicted_per_second) facts.push(`${timings.predicted_per_second.toFixed(1)} tokens/s`);
  if (usage?.prompt_tokens_details?.cached_tokens) facts.push(`${usage.prompt_tokens_details.cached_tokens} cached`);
  return facts.join(" · ");
}

function Composer({ isRunning }) {
  const { text, attachments, unread } = chat.draft.value;
  const change = changes => { chat.draft.value = { ...chat.draft.value, ...changes }; };
  const picker = useRef();
  const modalities = chat.model.value?.input_modalities ?? ["text"];
  const attach = async files => {
    change({ unread: [...chat.draft.value.unread, ...files] });
    const isWanted = file => chat.draft.value.unread.includes(file); // until it is cancelled
    for (const file of files.filter(isWanted)) {
      try {
        const item = await readAttachment(file, modalities);
        if (isWanted(file)) change({ attachments: [...chat.draft.value.attachments, item] });
      } catch (error) {
        notify(error.message, true);
      }
      change({ unread: chat.draft.value.unread.filter(each => each !== file) });
    }
  };
  const submit = event => {
    event.preventDefault();
    const { text: typed, attachments: files, unread: left } = chat.draft.value; // perhaps not rendered yet
    if (isRunning || left.length || !(typed.trim() || files.length)) return;
    chat.send(typed.trim(), files);
    change({ text: "", attachments: [] });
  };
  const onKey = event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !IS_TOUCH) submit(event);
  };
  const onPaste = event => {
    const files = [...event.clipboardData.files];
    const pasted = event.clipboardData.getData("text/plain");
    if (!files.length && pasted.length > LONG_TEXT) files.push(new File([pasted], "pasted.txt", { type: "text/plain" }));
    if (files.length) {
      event.preventDefault();
      attach(files);
    }
  };
  return html`<form class="composer" onSubmit=${submit} onDragOver=${event => event.preventDefault()}
      onDrop=${event => { event.preventDefault(); attach([...event.dataTransfer.files]); }}>
    <${Attachments} items=${attachments} onRemove=${item => change({ attachments: chat.draft.value.attachments.filter(each => each !== item) })} />
    ${unread.length > 0 && html`<p class="muted" role="status">Files that are still to be read: ${unread.length}
      <button type="button" class="plain" onClick=${() => change({ unread: [] })}>Cancel</button></p>`}
    <textarea id=${MESSAGE_BOX} aria-label="Message" placeholder="Message" rows="2" value=${text} onInput=${event => change({ text: event.target.value })} onKeyDown=${onKey} onPaste=${onPaste} />
    <div class="row">
      <input type="file" class="hidden" tabindex="-1" aria-label="Files" multiple ref=${picker}
        onChange=${event => { attach([...event.target.files]); event.target.value = ""; }} />
      <button type="button" onClick=${() => picker.current.click()}>Attach</button>
      ${canRecord && modalities.includes("audio") && html`<${Recorder} attach=${attach} />`}
      <span class="muted hint">${!IS_TOUCH && "Enter sends, Shift+Enter is a new line"}</span>
      ${isRunning
        ? html`<button type="button" class="primary" onClick=${() => chat.stop()}>Stop</button>`
        : html`<button class="primary" disabled=${unread.length > 0}>Send</button>`}
    </div>
  </form>`;
}

/** Attaches what the microphone hears, between two presses. */
function Recorder({ attach }) {
  const finish = useRef(null);
  const [seconds, setSeconds] = useState(null); // of a recording
  useEffect(() => {
    if (seconds === null) return undefined;
    const timer = setTimeout(() => setSeconds(seconds + 1), 1000);
    return () => clearTimeout(timer);
  }, [seconds]);
  const leaving = useRef(new AbortController());
  useEffect(() => () => leaving.current.abort(), []);
  const toggle = async () => {
    const end = finish.current;
    finish.current = end ? null : await startRecording(leaving.current.signal);
    setSeconds(end ? null : 0);
    if (end) await attach([await end()]);
  };
  return html`<${Action} run=${toggle}>${seconds === null ? "Record" : `Stop recording (${seconds} s)`}<//>`;
}
