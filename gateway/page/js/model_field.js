/** A choice of the models that generate or embed, in a form that waits for their list. */

import { useEffect } from "preact/hooks";
import { loadModels, models, modelsError } from "./chat_state.js";
import { Field, html } from "./ui.js";

export function ModelField({ name = "model", label = "Model", value }) {
  useEffect(() => { if (!models.value) loadModels(); }, []);
  const ids = (models.value ?? []).map(each => each.id);
  if (value && !ids.includes(value)) ids.unshift(value); // it is not there now
  return html`<${Field} label=${label} hint=${modelsError.value?.message}><select name=${name} required>
    ${ids.map(id => html`<option value=${id} defaultSelected=${id === value}>${id}</option>`)}</select><//>`;
}
