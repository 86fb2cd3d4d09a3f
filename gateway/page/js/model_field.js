/** A choice of the models that generate or embed. */

import { useEffect } from "preact/hooks";
import { loadModels, models } from "./chat_state.js";
import { Field, html } from "./ui.js";

export function ModelField({ name = "model", label = "Model", value }) {
  useEffect(() => { if (!models.value) loadModels(); }, []);
  return html`<${Field} label=${label}><select name=${name} required>
    ${(models.value ?? []).map(each => html`<option value=${each.id} selected=${each.id === value}>${each.id}</option>`)}</select><//>`;
}
