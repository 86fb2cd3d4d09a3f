/** The model, the sampling options and the tools of the chat. */

import { useState } from "preact/hooks";
import { getAll } from "./api.js";
import { model, models, presets, setSetting, settings } from "./chat_state.js";
import { Field, hasRoom, html, useLoad } from "./ui.js";

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

/** The vector store that the server searches by itself; absent while there is none. */
function StoreField({ value, onChange }) {
  const { data } = useLoad(() => getAll("v1/vector_stores"), []);
  if (!data?.length && !value) return null;
  return html`<${Field} label="Search in" hint="The model searches this vector store by itself"><select value=${value} onChange=${onChange}>
    <option value="">nothing</option>
    ${data?.map(each => html`<option value=${each.id}>${each.name || each.id}</option>`)}</select><//>`;
}

/** System messages that are kept under names. */
function Presets() {
  const [name, setName] = useState("");
  const kept = presets.value;
  const isKept = Object.hasOwn(kept, name);
  const save = () => { presets.value = { ...kept, [name]: settings.value.system }; };
  const remove = () => {
    const { [name]: _, ...rest } = kept;
    presets.value = rest;
  };
  const choose = event => {
    setName(event.target.value);
    const isTyped = event.inputType && event.inputType !== "insertReplacementText"; // else chosen from the list
    if (!isTyped && Object.hasOwn(kept, event.target.value)) setSetting("system", kept[event.target.value]);
  };
  return html`<div class="row presets"><input list="presets" aria-label="Preset" placeholder="Preset" value=${name} onInput=${choose} />
    <datalist id="presets">${Object.keys(kept).map(each => html`<option value=${each} />`)}</datalist>
    <button type="button" disabled=${!name.trim()} onClick=${save}>Keep</button>
    <button type="button" disabled=${!isKept} onClick=${remove}>Forget</button></div>`;
}

function describe({ state, max_model_len: context, input_modalities: modalities }) {
  const reads = modalities.map(each => ({ image: "pictures", audio: "sound" })[each] ?? each).join(", ");
  return `${state}, ${context ? `${context.toLocaleString()} tokens of context, ` : ""}reads ${reads}`;
}
