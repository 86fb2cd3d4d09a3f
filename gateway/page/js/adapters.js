/** LoRA adapters of the project: register, scale, delete, and which engines have them. */

import { post, remove } from "./api.js";
import { Action, Field, Form, formatBytes, html, notify, Status, Table, useList, usePolling } from "./ui.js";

export function AdaptersView() {
  const list = useList("v1/adapters");
  usePolling(list.reload, 2, list.rows?.some(row => row.engines.some(each => each.status === "pending" || each.status === "loading")) ?? false);
  const register = async ({ name, model, scale, file }, options) => {
    const form = new FormData();
    form.append("name", name);
    if (model) form.append("model", model);
    if (scale) form.append("default_scale", scale);
    form.append("file", file);
    await post("v1/adapters", form, options);
    notify("The engines are loading the adapter.");
    await list.reload();
  };
  return html`<details class="panel"><summary>Register an adapter</summary>
      <${Form} label="Register an adapter" submit="Register" onSubmit=${register}>
        <${Field} label="Name" name="name" required hint="Requests use it as a model" />
        <${Field} label="File" name="file" type="file" accept=".gguf" required hint="A LoRA adapter as GGUF" />
        <${Field} label="Base model" name="model" hint="Empty: the first model of each server" />
        <${Field} label="Scale" name="scale" type="number" min="-10" max="10" step="0.1" placeholder="1" /><//></details>
    <${Table} caption="Adapters" ...${list} columns=${[
      ["Name", row => html`<strong>${row.name}</strong>${row.description && html`<br /><small>${row.description}</small>`}`],
      ["Model", row => row.model ?? "the first"],
      ["Engines", row => row.engines.length ? row.engines.map(each => html`<div><${Status} value=${each.status} /> <small>${each.model ?? ""}</small>${each.problem && html`<p class="error">${each.problem}</p>`}</div>`) : "–"],
      ["Rank", row => row.rank, true],
      ["Scale", row => row.default_scale, true],
      ["Size", row => formatBytes(row.bytes), true],
      ["", row => html`<div class="row"><${Action} run=${async () => { await post(`v1/adapters/${row.id}/retry`); await list.reload(); }}>Retry<//>
        <${Action} class="danger" confirm=${`Delete the adapter ${row.name}?`} run=${async () => { await remove(`v1/adapters/${row.id}`); await list.reload(); }}>Delete<//></div>`],
    ]} />`;
}
