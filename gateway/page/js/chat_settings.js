/** The model, the sampling options and the tools of the chat. */

import { useState } from "preact/hooks";
import { get, getAll } from "./api.js";
import { model, models, presets, resetSettings, setSetting, settings } from "./chat_state.js";
import { ErrorBox, Field, hasRoom, html, SIDE, useLoad } from "./ui.js";

/** `[field, label, attributes]` of the number inputs. */
const SAMPLING = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1, placeholder: 1 }],
  ["top_p", "Top P", { min: 0, max: 1, step: 0.05, placeholder: 1 }],
  ["top_k", "Top K", { min: 0, step: 1, placeholder: "off" }],
  ["min_p", "Min P", { min: 0, max: 1, step: 0.01, placeholder: "off" }],
  ["max_tokens", "Max tokens", { min: 1, step: 1, placeholder: "none" }],
  ["seed", "Seed", { min: 0, step: 1, placeholder: "random" }],
];
const EFFORTS = ["", "none", "minimal", "low", "medium", "high"];
const TOOLS_EXAMPLE = `[{"type": "function", "function": {"name": "get_weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]`;

export function ChatSettings() {
  const values = settings.value;
  const input = name => event => setSetting(name, event.target.value);
  return html`<details class="folded" name=${hasRoom() ? undefined : SIDE} open=${hasRoom()}>
    <summary>Settings</summary>
    <div class="fields">
      <${Field} label="Model"><select value=${model.value?.id} onChange=${input("model")}>
        ${(models.value ?? []).map(each => html`<option value=${each.id}>${each.id}</option>`)}</select><//>
      ${model.value && html`<p class="muted">${describe(model.value)}</p>`}
      <${Field} label="System message"><textarea rows="3" value=${values.system} onInput=${input("system")} /><//>
      <${Presets} />
      <div class="grid">${SAMPLING.map(([name, label, attributes]) => html`<${Field} key=${name} label=${label} type="number" ...${attributes} value=${values[name]} onInput=${input(name)} />`)}</div>
      <${Field} label="Reasoning effort"><select value=${values.effort} onChange=${input("effort")}>
        ${EFFORTS.map(each => html`<option value=${each}>${each || "the model's default"}</option>`)}</select><//>
      <${Field} label="Tools" hint="A JSON array, as in the API's field tools"><textarea class="code" rows="4" placeholder=${TOOLS_EXAMPLE} value=${values.tools} onInput=${input("tools")} /><//>
      <${HostedTools} />
      <${Field} label="JSON schema" hint="The answer is JSON that satisfies it"><textarea class="code" rows="2" placeholder=${'{"type": "object", …}'} value=${values.schema} onInput=${input("schema")} /><//>
      <${Field} label="Other fields" hint="A JSON object that is added to the request"><textarea class="code" rows="2" placeholder=${'{"stop": ["END"]}'} value=${values.extra} onInput=${input("extra")} /><//>
      <p><button type="button" onClick=${resetSettings}>Reset the settings</button></p>
    </div>
  </details>`;
}

/** The tools that the server runs by itself. They are listed when somebody looks. */
function HostedTools() {
  const { search, servers } = settings.value;
  const [isOpen, setOpen] = useState(search !== "" || servers.length > 0);
  return html`<details open=${isOpen} onToggle=${event => setOpen(event.currentTarget.open)}><summary>Tools of the server</summary>
    ${isOpen && html`<div class="fields"><${StoreChoice} value=${search} /><${ServerChoice} chosen=${servers} /></div>`}</details>`;
}

function StoreChoice({ value }) {
  const { data, error } = useLoad(() => getAll("v1/vector_stores"), []);
  if (error) return html`<${ErrorBox} error=${error} />`;
  return html`<${Field} label="Search in" hint="The model searches this vector store by itself"><select value=${value} onChange=${event => setSetting("search", event.target.value)}>
    <option value="">nothing</option>
    ${data?.map(each => html`<option value=${each.id}>${each.name || each.id}</option>`)}</select><//>`;
}

/** MCP servers whose tools the model calls; those that are chosen are offered even if they are not there now. */
function ServerChoice({ chosen }) {
  const { data, error } = useLoad(() => get("v1/responses/mcp_servers"), []);
  if (error) return html`<${ErrorBox} error=${error} />`;
  const offered = new Set([...(data?.data ?? []).map(({ id }) => id), ...chosen]);
  if (!offered.size) return null;
  const choose = (label, isChosen) => setSetting("servers", [...settings.value.servers.filter(each => each !== label), ...(isChosen ? [label] : [])]);
  return html`<fieldset class="choices"><legend>Remote tools of</legend>
    ${[...offered].map(label => html`<label key=${label}><input type="checkbox" checked=${chosen.includes(label)} onChange=${event => choose(label, event.target.checked)} /> ${label}</label>`)}
    <small>A call waits for your approval in the chat.</small></fieldset>`;
}

/** System messages that are kept under names. */
function Presets() {
  const [chosen, setChosen] = useState("");
  const kept = presets.value;
  const choose = ({ target: { value: name } }) => {
    setChosen(name);
    if (name) setSetting("system", kept[name]);
  };
  const keep = () => {
    const name = window.prompt("Name of the preset", chosen)?.trim();
    if (!name) return;
    presets.value = { ...presets.value, [name]: settings.value.system };
    setChosen(name);
  };
  const forget = () => {
    const { [chosen]: _, ...rest } = kept;
    presets.value = rest;
    setChosen("");
  };
  return html`<div class="row presets"><select aria-label="Preset" value=${chosen} onChange=${choose}>
      <option value="">No preset</option>${Object.keys(kept).map(each => html`<option value=${each}>${each}</option>`)}</select>
    <button type="button" onClick=${keep}>Keep</button>
    <button type="button" disabled=${!chosen} onClick=${forget}>Forget</button></div>`;
}

function describe({ state, max_model_len: context, input_modalities: modalities }) {
  const reads = modalities.map(each => ({ image: "pictures", audio: "sound" })[each] ?? each).join(", ");
  return `${state}, ${context ? `${context.toLocaleString()} tokens of context, ` : ""}reads ${reads}`;
}
