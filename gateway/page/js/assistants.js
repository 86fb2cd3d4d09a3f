/** Assistants: list, create, delete. */

import { post, remove } from "./api.js";
import { ModelField } from "./model_field.js";
import { Action, Field, Form, html, parseJson, Table, Time, useList } from "./ui.js";

export function AssistantsView() {
  const list = useList("v1/assistants");
  const create = async ({ name, model, instructions, tools }) => {
    await post("v1/assistants", { name, model, instructions, tools: tools.trim() ? parseJson(tools, "Tools") : [] });
    await list.reload();
  };
  return html`<details class="panel"><summary>New assistant</summary>
      <${Form} label="New assistant" submit="Create" onSubmit=${create}>
        <${Field} label="Name" name="name" maxlength="256" required /><${ModelField} />
        <${Field} label="Instructions"><textarea name="instructions" rows="3" /><//>
        <${Field} label="Tools" hint="A JSON array, as in the API's field tools"><textarea class="code" name="tools" rows="3" /><//><//></details>
    <${Table} caption="Assistants" ...${list} columns=${[
      ["Name", row => row.name ?? row.id],
      ["Id", row => html`<code>${row.id}</code>`],
      ["Model", row => row.model],
      ["Instructions", row => row.instructions ?? "–"],
      ["Tools", row => row.tools.map(tool => tool.function?.name ?? tool.type).join(", ") || "–"],
      ["Created", row => html`<${Time} value=${row.created_at} />`],
      ["", row => html`<${Action} class="danger" confirm="Delete this assistant?" run=${async () => { await remove(`v1/assistants/${row.id}`); await list.reload(); }}>Delete<//>`],
    ]} />`;
}
