/** API keys and projects: create, list, revoke. */

import { useState } from "preact/hooks";
import { enumName, listAll } from "./admin.js";
import { post, remove } from "./api.js";
import { Action, ErrorBox, Field, Form, html, notify, Status, Table, Time, useLoad } from "./ui.js";

const PRIORITIES = ["PRIORITY_NORMAL", "PRIORITY_INTERACTIVE", "PRIORITY_BATCH"];

export function KeysView() {
  const keys = useLoad(() => listAll("admin/keys", "keys", { show_revoked: true }), []);
  const projects = useLoad(() => listAll("admin/projects", "projects"), []);
  const [secret, setSecret] = useState(null);
  const create = async ({ name, project, scope, priority, days }) => {
    const expiry = days && { expire_time: new Date(Date.now() + days * 86_400_000).toISOString() };
    const scopes = scope === "admin" ? ["KEY_SCOPE_INFERENCE", "KEY_SCOPE_ADMIN"] : ["KEY_SCOPE_INFERENCE"];
    const created = await post("admin/keys", { name, project_id: project, scopes, priority, ...expiry });
    setSecret(created.secret);
    await keys.reload();
  };
  const createProject = async ({ id, title }) => {
    await post("admin/projects", { project_id: id, display_name: title });
    notify(`Created the project ${id}.`);
    await projects.reload();
  };
  const names = projects.data?.map(each => each.id) ?? ["default"];
  if (keys.error) return html`<${ErrorBox} error=${keys.error} />`;
  return html`<div class="panels">
    <details class="panel"><summary>New key</summary>
      <${Form} label="New key" submit="Create" onSubmit=${create}>
        <${Field} label="Name" name="name" maxlength="255" required />
        <${Field} label="Project"><select name="project">${names.map(each => html`<option>${each}</option>`)}</select><//>
        <${Field} label="Scope"><select name="scope"><option>inference</option><option value="admin">inference and admin</option></select><//>
        <${Field} label="Priority"><select name="priority">${PRIORITIES.map(each => html`<option value=${each}>${enumName(each, "PRIORITY_")}</option>`)}</select><//>
        <${Field} label="Days until it expires" name="days" type="number" min="1" hint="Empty: never" /><//></details>
    <details class="panel"><summary>New project</summary>
      <${Form} label="New project" submit="Create" onSubmit=${createProject}>
        <${Field} label="Id" name="id" required hint="Lower-case letters, digits, . _ and -" /><${Field} label="Title" name="title" maxlength="255" /><//></details></div>
    ${secret && html`<section class="card secret" role="status" aria-label="New key">
      <p>This key is shown once. Copy it now.</p><pre tabindex="0" aria-label="Secret">${secret}</pre>
      <button onClick=${() => setSecret(null)}>Hide it</button></section>`}
    <${Table} caption="Keys" rows=${keys.data} columns=${[
      ["Name", row => html`<strong>${row.name}</strong><br /><code>${row.prefix}…</code>`],
      ["Project", row => row.project],
      ["Scopes", row => row.scopes.map(each => enumName(each, "KEY_SCOPE_")).join(", ")],
      ["State", row => html`<${Status} value=${describeState(row)} />`],
      ["Created", row => html`<${Time} value=${row.create_time} />`],
      ["Expires", row => html`<${Time} value=${row.expire_time} />`],
      ["Last use", row => html`<${Time} value=${row.last_use_time} />`],
      ["", row => row.revoke_time ? null : html`<${Action} class="danger" confirm=${`Revoke ${row.name}? This cannot be undone.`} run=${async () => { await remove(`admin/keys/${row.id}`); await keys.reload(); }}>Revoke<//>`],
    ]} />`;
}

function describeState({ revoke_time: revoked, expire_time: expires }) {
  if (revoked) return "revoked";
  return expires && new Date(expires) < new Date() ? "expired" : "active";
}
