/** Assistants: list, create, edit, delete. */

import { get, getAll, post, remove } from "./api.js";
import { areModelsLoading } from "./chat_state.js";
import { ModelField } from "./model_field.js";
import { Action, ErrorBox, Field, Form, html, notify, parseJson, Table, Time, useList, useLoad } from "./ui.js";

const SEARCH = "file_search";
const STORE = "store ";

export function AssistantsView({ id }) {
  return id ? html`<${Assistant} id=${id} />` : html`<${AssistantList} />`;
}

function AssistantList() {
  const list = useList("v1/assistants");
  const create = async values => {
    await post("v1/assistants", toBody(values));
    await list.reload();
  };
  return html`<details class="panel"><summary>New assistant</summary>
      <${Form} label="New assistant" submit="Create" isLoading=${areModelsLoading.value} onSubmit=${create}><${Fields} /><//></details>
    <${Table} caption="Assistants" ...${list} columns=${[
      ["Name", row => html`<a href=${`#/assistants/${row.id}`}>${row.name ?? row.id}</a>`],
      ["Id", row => html`<code>${row.id}</code>`],
      ["Model", row => row.model],
      ["Instructions", row => row.instructions ?? "–"],
      ["Tools", row => row.tools.map(tool => tool.function?.name ?? tool.type).join(", ") || "–"],
      ["Created", row => html`<${Time} value=${row.created_at} />`],
      ["", row => html`<${Action} class="danger" confirm=${`Delete the assistant "${row.name ?? row.id}"?`} run=${async () => { await remove(`v1/assistants/${row.id}`); await list.reload(); }}>Delete<//>`],
    ]} />`;
}

function Assistant({ id }) {
  const path = `v1/assistants/${id}`;
  const { data, error, replace } = useLoad(() => get(path), [id]);
  const save = async values => {
    replace(await post(path, toBody(values)));
    notify("Saved.");
  };
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!data) return html`<p class="muted" role="status">Loading…</p>`;
  return html`<p><a href="#/assistants">All assistants</a></p>
    <h2>${data.name ?? id}</h2>
    <div class="card narrow"><${Form} label="Assistant" submit="Save" isLoading=${areModelsLoading.value} onSubmit=${save}><${Fields} assistant=${data} /><//></div>`;
}

/** The fields of an assistant, with its values. */
function Fields({ assistant }) {
  const stores = useLoad(() => getAll("v1/vector_stores"), []);
  const chosen = assistant?.tool_resources?.file_search?.vector_store_ids ?? [];
  const listed = stores.data ?? [];
  const offered = [...listed, ...chosen.filter(id => !listed.some(store => store.id === id)).map(id => ({ id }))];
  const tools = assistant?.tools.length ? JSON.stringify(assistant.tools, null, 2) : "";
  return html`<${Field} label="Name" name="name" maxlength="256" required defaultValue=${assistant?.name} />
    <${Field} label="Description" name="description" maxlength="512" defaultValue=${assistant?.description} />
    <${ModelField} value=${assistant?.model} />
    <${Field} label="Instructions"><textarea name="instructions" rows="3">${assistant?.instructions}</textarea><//>
    <${Field} label="Temperature" name="temperature" type="number" min="0" max="2" step="any" defaultValue=${assistant?.temperature} />
    <${Field} label="Tools" hint="A JSON array, as in the API's field tools"><textarea class="code" name="tools" rows="3">${tools}</textarea><//>
    ${offered.length > 0 && html`<fieldset class="choices"><legend>Vector stores that it searches</legend>
      ${offered.map(({ id, name }) => html`<label key=${id}><input type="checkbox" name=${STORE + id} defaultChecked=${chosen.includes(id)} /> ${name || id}</label>`)}</fieldset>`}`;
}

/** The body of a request from the values of a form. Stores are searched with the tool for it. */
function toBody({ name, description, model, instructions, temperature, tools, ...rest }) {
  const stores = Object.keys(rest).filter(key => key.startsWith(STORE)).map(key => key.slice(STORE.length));
  const all = tools.trim() ? parseJson(tools, "Tools") : [];
  if (stores.length && Array.isArray(all) && !all.some(({ type }) => type === SEARCH)) all.push({ type: SEARCH });
  return {
    name, description, model, instructions, tools: all,
    temperature: temperature === "" ? null : Number(temperature),
    tool_resources: { file_search: { vector_store_ids: stores } },
  };
}
