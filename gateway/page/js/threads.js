/** Threads: messages, and runs with their steps while they happen. */

import { useEffect, useReducer, useRef, useState } from "preact/hooks";
import { followEvents, get, getAll, post, postWhole, remove, saveFile } from "./api.js";
import { toMarkdown } from "./chat_items.js";
import { Markdown } from "./markdown.js";
import { Transcript } from "./transcript.js";
import { Action, Broken, ErrorBox, Field, Form, html, Json, notify, readArray, Status, Table, Time, useList, useLoad, usePolling } from "./ui.js";

const ENDED = ["completed", "failed", "cancelled", "expired", "incomplete"];

export function ThreadsView({ id }) {
  return id ? html`<${Thread} key=${id} id=${id} />` : html`<${ThreadList} />`;
}

function ThreadList() {
  const list = useList("v1/threads");
  const create = async ({ file }) => { location.hash = `#/threads/${await storeMessages(await readArray(file, "Messages"))}`; };
  return html`<div class="card narrow"><${Form} label="New thread" submit="New thread" onSubmit=${create}>
      <${Field} label="Messages" name="file" type="file" accept=".json" hint="A JSON array of messages, as a thread is saved; may be empty" /><//></div>
    <${Table} caption="Threads" ...${list} columns=${[
      ["Thread", row => html`<a href=${`#/threads/${row.id}`}><code>${row.id}</code></a>`],
      ["Created", row => html`<${Time} value=${row.created_at} />`],
      ["", row => html`<${Action} class="danger" confirm=${`Delete the thread ${row.id} with its messages and runs?`} run=${async () => { await remove(`v1/threads/${row.id}`); await list.reload(); }}>Delete<//>`],
    ]} />`;
}

function Thread({ id }) {
  const path = `v1/threads/${id}`;
  const messages = useList(`${path}/messages`); // the newest first
  const runs = useList(`${path}/runs`, {}, 20);
  const assistants = useLoad(() => getAll("v1/assistants"), []);
  const [live, dispatch] = useReducer(addRunEvent, null);
  const leaving = useRef(new AbortController());
  const follow = async (method, target, body) => {
    dispatch({ event: "start" });
    try {
      const keptAt = ({ data }) => data.object === "thread.run" ? `${path}/runs/${data.id}/events` : undefined;
      for await (const event of followEvents(method, target, { body, signal: leaving.current.signal }, keptAt)) dispatch(event);
    } finally {
      await Promise.all([messages.reload(), runs.reload()]);
      dispatch({ event: "read" });
    }
  };
  const send = async ({ text, assistant }) => {
    if (text.trim()) await post(`${path}/messages`, { role: "user", content: text });
    await messages.reload();
    await follow("POST", `${path}/runs`, { assistant_id: assistant, stream: true });
  };
  const newest = runs.rows?.[0];
  const isFollowing = live?.isRunning ?? false;
  usePolling(runs.reload, 2, !isFollowing);
  useEffect(() => { // what began before this view was opened, or goes on in another tab
    const isKnown = live ? live.run?.id === newest?.id && live.run?.status === newest?.status : ENDED.includes(newest?.status);
    if (!newest || isFollowing || isKnown) return;
    follow("GET", `${path}/runs/${newest.id}/events`).catch(error => {
      if (error.name !== "AbortError") notify(error.message, true);
    });
  }, [newest?.id, newest?.status, isFollowing]);
  useEffect(() => () => leaving.current.abort(), []);
  const error = messages.error ?? runs.error ?? assistants.error;
  if (error) return html`<${ErrorBox} error=${error} />`;
  const isWaiting = live?.run?.status === "requires_action";
  const shown = messages.rows?.filter(message => !(message.id in (live?.texts ?? {}))).reverse();
  return html`<p><a href="#/threads">All threads</a></p>
    <div class="row"><h2><code>${id}</code></h2>
      <${Action} run=${async () => saveFile(`${id}.json`, JSON.stringify(await getAll(`${path}/messages`), null, 2))}>Save as JSON<//>
      <${Action} run=${async () => saveFile(`${id}.md`, toMarkdown((await getAll(`${path}/messages`)).map(fromMessage)))}>Save as Markdown<//></div>
    ${(shown?.length || live) && html`<div class="items"><${Transcript} label="Messages" isBusy=${isFollowing} first=${shown?.[0]?.id} hasOlder=${messages.hasMore} loadOlder=${messages.more}>
      ${shown?.map(message => html`<${Message} key=${message.id} message=${message} />`)}
      ${Object.entries(live?.texts ?? {}).map(([key, text]) => html`<article key=${key} class="message model" aria-label="Model"><${Markdown} text=${text} /></article>`)}
    <//></div>`}
    ${live && html`<${LiveRun} live=${live} path=${path} />`}
    ${isWaiting && html`<${ToolOutputs} run=${live.run} submit=${outputs => follow("POST", `${path}/runs/${live.run.id}/submit_tool_outputs`, { tool_outputs: outputs, stream: true })} />`}
    <div class="card narrow"><${Form} label="Run" submit="Add and run" isLoading=${!assistants.data && !assistants.error} onSubmit=${send}>
      <${Field} label="Message"><textarea name="text" rows="2" /><//>
      <${Field} label="Assistant" hint=${assistants.data?.length === 0 ? "Create an assistant first." : assistants.error?.message}><select name="assistant" required>
        ${assistants.data?.map(each => html`<option value=${each.id}>${each.name ?? each.id}</option>`)}</select><//><//></div>
    <h2>Runs</h2>
    <${Table} caption="Runs" ...${runs} columns=${[
      ["Run", row => html`<code>${row.id}</code>`],
      ["Status", row => html`<${Status} value=${row.status} />${row.last_error && html`<p class="error">${row.last_error.message}</p>`}`],
      ["Model", row => row.model],
      ["Tokens", row => row.usage?.total_tokens ?? "–", true],
      ["Started", row => html`<${Time} value=${row.created_at} />`],
      ["Steps", row => html`<${Steps} path=${`${path}/runs/${row.id}/steps`} />`],
    ]} />`;
}

/** Store a thread with messages of a file, as they are saved or as the API takes them; returns its id. */
function storeMessages(saved) {
  const toInput = part => part?.text?.value === undefined ? part : { type: "text", text: part.text.value };
  const messages = saved.map(({ role, content, attachments, metadata }) => ({
    role, content: Array.isArray(content) ? content.map(toInput) : content, attachments, metadata,
  }));
  return postWhole("v1/threads", { messages: messages.slice(0, 32) }, "messages", messages.slice(32));
}

/** A message of a thread as one of the chat. */
function fromMessage({ role, content }) {
  return { role, text: content.filter(part => part.type === "text").map(part => part.text.value).join("\n") };
}

function Message({ message }) {
  const isUser = message.role === "user";
  const { text } = fromMessage(message);
  return html`<article class=${`message ${isUser ? "user" : "model"}`} aria-label=${isUser ? "You" : "Model"}>
    ${isUser ? html`<p class="text">${text}</p>` : html`<${Markdown} text=${text} />`}</article>`;
}

/**
 * The state of a followed run after an event: `{run, steps, texts, isRunning, isBroken}`, with the text of each message by
 * its id; `isBroken` while the server cannot be reached.
 */
function addRunEvent(live, { event, data }) {
  if (event === "broken") return { ...live, isBroken: true };
  return { ...addRunData(live, { event, data }), isBroken: false };
}

function addRunData(live, { event, data }) {
  if (event === "start") return { run: live?.run, steps: live?.steps ?? [], texts: {}, isRunning: true };
  if (event === "read") return { ...live, texts: {}, isRunning: false };
  if (event === "thread.message.delta") {
    const text = (live.texts[data.id] ?? "") + (data.delta.content[0].text?.value ?? "");
    return { ...live, texts: { ...live.texts, [data.id]: text } };
  }
  if (data?.object === "thread.run") return { ...live, run: data };
  if (event === "thread.run.step.delta") return { ...live, steps: live.steps.map(step => step.id === data.id ? addStepDelta(step, data.delta) : step) };
  if (data?.object === "thread.run.step") return { ...live, steps: [...live.steps.filter(step => step.id !== data.id), data] };
  return live;
}

/** A step with more of its tool calls: their arguments arrive in pieces. */
function addStepDelta(step, { step_details: details }) {
  const calls = [...step.step_details.tool_calls];
  for (const { index, ...call } of details.tool_calls ?? []) {
    const before = calls[index];
    const text = (before?.function?.arguments ?? "") + (call.function?.arguments ?? "");
    calls[index] = { ...before, ...call, ...(call.function && { function: { ...before?.function, ...call.function, arguments: text } }) };
  }
  return { ...step, step_details: { ...step.step_details, tool_calls: calls } };
}

function LiveRun({ live: { run, steps, isBroken }, path }) {
  if (!run) return null;
  return html`<section class="card narrow" aria-label="Current run"><div class="row"><h3>Run</h3><${Status} value=${run.status} />
      ${!ENDED.includes(run.status) && html`<${Action} run=${() => post(`${path}/runs/${run.id}/cancel`)}>Cancel<//>`}</div>
    <${Broken} isShown=${isBroken} /><${ErrorBox} error=${run.last_error} /><${StepList} steps=${steps.filter(step => step.run_id === run.id)} /></section>`;
}

function StepList({ steps }) {
  return html`<ol class="steps" aria-label="Steps">${steps.map(step => html`<li key=${step.id}>
    ${step.type === "message_creation" ? "Message" : step.step_details.tool_calls.map(call => call.function?.name ?? call.type).join(", ") || "Tool calls"}
    ${" "}<${Status} value=${step.status} />
    ${step.type === "tool_calls" && html`<${Json} value=${step.step_details.tool_calls} label="Tool calls" />`}</li>`)}</ol>`;
}

function Steps({ path }) {
  const [steps, setSteps] = useState(null);
  if (steps) return html`<${StepList} steps=${steps} />`;
  return html`<${Action} run=${async () => setSteps((await get(path, { order: "asc" })).data)}>Show<//>`;
}

function ToolOutputs({ run, submit }) {
  const calls = run.required_action.submit_tool_outputs.tool_calls;
  const send = values => submit(calls.map(call => ({ tool_call_id: call.id, output: values[call.id] })));
  return html`<section class="card narrow" aria-label="Outputs of tools"><${Form} label="Outputs of tools" submit="Send the outputs" onSubmit=${send}>
    ${calls.map(call => html`<div><p>The model calls <code>${call.function.name}</code>:</p><${Json} value=${call.function.arguments} label=${`Arguments of ${call.function.name}`} />
      <${Field} label=${`Output of ${call.function.name}`}><textarea name=${call.id} rows="2" required /><//></div>`)}<//></section>`;
}
