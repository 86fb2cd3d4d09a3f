/** The chat: messages with their reasoning and tool calls, and the composer. */

import { useEffect, useRef, useState } from "preact/hooks";
import { acceptedTypes, readAttachment } from "./attachments.js";
import { ChatSettings } from "./chat_settings.js";
import * as chat from "./chat_state.js";
import { Markdown } from "./markdown.js";
import { ErrorBox, html, notify } from "./ui.js";

export function ChatView() {
  const log = useRef();
  const isAtEnd = useRef(true);
  const messages = chat.messages.value;
  const isRunning = chat.running.value !== null;
  useEffect(() => { chat.loadModels(); }, []);
  useEffect(() => {
    if (isAtEnd.current) log.current.scrollTop = log.current.scrollHeight;
  }, [messages]);
  const follow = () => { isAtEnd.current = log.current.scrollHeight - log.current.scrollTop - log.current.clientHeight < 40; };
  return html`<div class="chat">
    <section class="talk" aria-label="Chat">
      <div class="log" ref=${log} role="log" aria-label="Messages" aria-busy=${isRunning} tabindex="0" onScroll=${follow}>
        <${ErrorBox} error=${chat.modelsError.value} />
        ${!messages.length && html`<p class="muted hello">Ask ${chat.model.value?.id ?? "the model"} something.</p>`}
        ${messages.map((message, index) => message.role === "user"
          ? html`<${UserMessage} key=${message.id} message=${message} index=${index} />`
          : html`<${ModelMessage} key=${message.id} message=${message} index=${index} isLast=${index === messages.length - 1} />`)}
      </div>
      <${Composer} isRunning=${isRunning} />
    </section>
    <${ChatSettings} />
  </div>`;
}

function UserMessage({ message, index }) {
  const [isEditing, setEditing] = useState(false);
  const edit = event => {
    event.preventDefault();
    setEditing(false);
    chat.send(new FormData(event.currentTarget).get("text"), message.attachments, index);
  };
  return html`<article class="message user" aria-label="You">
    <${Attachments} items=${message.attachments} dropped=${message.dropped} />
    ${isEditing
      ? html`<form class="fields" onSubmit=${edit}>
          <textarea name="text" aria-label="Edit the message" rows="3" ref=${box => box?.focus()} required>${message.text}</textarea>
          <div class="row"><button class="primary">Send again</button>
            <button type="button" onClick=${() => setEditing(false)}>Cancel</button></div></form>`
      : html`<p class="text">${message.text}</p>
        <div class="tools"><button class="plain" onClick=${() => setEditing(true)}>Edit</button></div>`}
  </article>`;
}

function Attachments({ items, dropped, onRemove }) {
  if (dropped?.length && !items.length) return html`<p class="muted">Attached: ${dropped.join(", ")} (no longer kept in this tab)</p>`;
  if (!items.length) return null;
  return html`<ul class="attachments" aria-label="Attachments">${items.map(item => html`<li>
    ${item.kind === "image" ? html`<img src=${item.url} alt=${item.name} />`
      : item.kind === "audio" ? html`<audio controls src=${item.url} aria-label=${item.name}></audio>`
      : html`<span class="file">${item.name}</span>`}
    ${onRemove && html`<button type="button" class="plain" aria-label=${`Remove ${item.name}`} onClick=${() => onRemove(item)}>✕</button>`}
  </li>`)}</ul>`;
}

function ModelMessage({ message, index, isLast }) {
  const isRunning = message.state === "running";
  const copy = () => navigator.clipboard.writeText(message.text).then(() => notify("Copied."), error => notify(error.message, true));
  return html`<article class="message model" aria-label="Model">
    ${message.reasoning && html`<details class="reasoning"><summary>Reasoning</summary><p class="text">${message.reasoning}</p></details>`}
    ${message.text && html`<${Markdown} text=${message.text} />`}
    ${isRunning && html`<span class="cursor" role="img" aria-label="Generating"></span>`}
    ${message.calls.length > 0 && html`<${ToolCalls} message=${message} index=${index} isLast=${isLast && !isRunning} />`}
    ${message.error && html`<${ErrorBox} error=${message.error && { message: message.error }} />`}
    ${!isRunning && html`<div class="tools">
      <button class="plain" onClick=${() => chat.regenerate(index)}>Regenerate</button>
      ${message.text && html`<button class="plain" onClick=${copy}>Copy</button>`}
      <span class="muted">${describe(message)}</span></div>`}
  </article>`;
}

function describe({ state, finish, usage, timings }) {
  const facts = [];
  if (state === "stopped") facts.push("stopped");
  if (finish === "length") facts.push("ended at the token limit");
  if (usage) facts.push(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens`);
  if (timings?.predicted_per_second) facts.push(`${timings.predicted_per_second.toFixed(1)} tokens/s`);
  if (usage?.prompt_tokens_details?.cached_tokens) facts.push(`${usage.prompt_tokens_details.cached_tokens} cached`);
  return facts.join(" · ");
}

/** The calls that the model asks for; the user enters what each one returns. */
function ToolCalls({ message, index, isLast }) {
  const proceed = event => {
    event.preventDefault();
    chat.generate();
  };
  return html`<form class="calls" onSubmit=${proceed}>
    ${message.calls.map(call => html`<fieldset key=${call.id}><legend>Tool call: <code>${call.name}</code></legend>
      <pre tabindex="0" aria-label=${`Arguments of ${call.name}`}>${pretty(call.arguments)}</pre>
      ${isLast
        ? html`<label>Output of the tool
            <textarea rows="2" required value=${call.output} onInput=${event => chat.setOutput(index, call.id, event.target.value)} /></label>`
        : html`<p class="text">${call.output}</p>`}
    </fieldset>`)}
    ${isLast && html`<button class="primary">Send the ${message.calls.length > 1 ? "outputs" : "output"}</button>`}
  </form>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it still arrives
  }
}

function Composer({ isRunning }) {
  const [text, setText] = useState("");
  const [attachments, setAttachments] = useState([]);
  const picker = useRef();
  const modalities = chat.model.value?.input_modalities ?? ["text"];
  const attach = async files => {
    for (const file of files) {
      try {
        const item = await readAttachment(file, modalities);
        setAttachments(items => [...items, item]);
      } catch (error) {
        notify(error.message, true);
      }
    }
  };
  const submit = event => {
    event.preventDefault();
    if (isRunning || !(text.trim() || attachments.length)) return;
    chat.send(text.trim(), attachments);
    setText("");
    setAttachments([]);
  };
  const onKey = event => {
    if (event.key === "Escape" && isRunning) chat.stop();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  const onPaste = event => {
    const files = [...event.clipboardData.files];
    if (files.length) {
      event.preventDefault();
      attach(files);
    }
  };
  return html`<form class="composer" onSubmit=${submit} onDragOver=${event => event.preventDefault()}
      onDrop=${event => { event.preventDefault(); attach([...event.dataTransfer.files]); }}>
    <${Attachments} items=${attachments} onRemove=${item => setAttachments(attachments.filter(each => each !== item))} />
    <textarea aria-label="Message" placeholder="Message" rows="2" value=${text} onInput=${event => setText(event.target.value)} onKeyDown=${onKey} onPaste=${onPaste} />
    <div class="row">
      <input type="file" class="hidden" tabindex="-1" aria-label="Files" multiple accept=${acceptedTypes(modalities)} ref=${picker}
        onChange=${event => { attach([...event.target.files]); event.target.value = ""; }} />
      <button type="button" onClick=${() => picker.current.click()}>Attach</button>
      <span class="muted hint">Enter sends, Shift+Enter is a new line</span>
      ${isRunning
        ? html`<button type="button" class="primary" onClick=${chat.stop}>Stop</button>`
        : html`<button class="primary">Send</button>`}
    </div>
  </form>`;
}
