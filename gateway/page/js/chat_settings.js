/** The model, the sampling options and the tools of the chat. */

import { useState } from "preact/hooks";
import { getAll } from "./api.js";
import { model, models, presets, setSetting, settings } from "./chat_state.js";
import { ErrorBox, Field, hasRoom, html, useLoad } from "./ui.js";

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
  return html`<details class="folded" open=${hasRoom()}>
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
      <${StoreField} value=${values.search} onChange=${input("search")} />
      <${Field} label="JSON schema" hint="The answer is JSON that satisfies it"><textarea class="code" rows="2" placeholder=${'{"type": "object", …}'} value=${values.schema} onInput=${input("schema")} /><//>
      <${Field} label="Other fields" hint="A JSON object that is added to the request"><textarea class="code" rows="2" placeholder=${'{"stop": ["END"]}'} value=${values.extra} onInput=${input("extra")} /><//>
    </div>
  </details>`;
}

/** The vector store that the server searches by itself. They are listed when somebody looks. */
function StoreField({ value, onChange }) {
  const [isOpen, setOpen] = useState(value !== "");
  return html`<details open=${isOpen} onToggle=${event => setOpen(event.currentTarget.open)}><summary>Search by the server</summary>
    ${isOpen && html`<${StoreChoice} value=${value} onChange=${onChange} />`}</details>`;
}

function StoreChoice({ value, onChange }) {
  const { data, error } = useLoad(() => getAll("v1/vector_stores"), []);
  if (error) return html`<${ErrorBox} error=${error} />`;
  return html`<${Field} label="Search in" hint="The model searches this vector store by itself"><select value=${value} onChange=${onChange}>
    <option value="">nothing</option>
    ${data?.map(each => html`<option value=${each.id}>${each.name || each.id}</option>`)}</select><//>`;
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
    presets.value = { ...kept, [name]: settings.value.system };
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
