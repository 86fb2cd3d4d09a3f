/** API keys and projects: create, list, rotate, revoke. */

import { useState } from "preact/hooks";
import { enumName, listAll } from "./admin.js";
import { post, remove } from "./api.js";
import { Action, copyText, ErrorBox, Field, Form, html, notify, Status, Table, Time, useLoad } from "./ui.js";

const PRIORITIES = ["PRIORITY_NORMAL", "PRIORITY_INTERACTIVE", "PRIORITY_BATCH"];
/** Scopes, and what each permits. */
const SCOPES = [
  ["inference", "everything in its project"],
  ["generate", "of that, calls of models"],
  ["files", "of that, files and vector stores"],
  ["files_read", "of that, reading and searching those"],
  ["read", "of that, reading stored objects"],
  ["admin", "what operators do"],
  ["admin_read", "of that, reading"],
];
const words = text => text.split(/[\s,]+/).filter(Boolean);
const inDays = days => days && { expire_time: new Date(Date.now() + days * 86_400_000).toISOString() };

export function KeysView() {
  const keys = useLoad(() => listAll("admin/keys", "keys", { show_revoked: true }), []);
  const projects = useLoad(() => listAll("admin/projects", "projects"), []);
  const [secret, setSecret] = useState(null);
  const [rotated, setRotated] = useState(null);
  const create = async ({ name, project, priority, days, models, networks, ...fields }) => {
    const scopes = SCOPES.filter(([scope]) => fields[`scope-${scope}`]).map(([scope]) => `KEY_SCOPE_${scope.toUpperCase()}`);
    const created = await post("admin/keys", { name, project_id: project, scopes, priority, models: words(models), networks: words(networks), ...inDays(days) });
    setSecret(created.secret);
    await keys.reload();
  };
  const rotate = async ({ hours, days }) => {
    const changed = await post("admin/keys/rotate", { key_id: rotated.id, overlap: `${Math.round(hours * 3600)}s`, ...inDays(days) });
    setSecret(changed.secret);
    setRotated(null);
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
      <${Form} label="New key" submit="Create" isLoading=${!projects.data && !projects.error} onSubmit=${create}>
        <${Field} label="Name" name="name" maxlength="255" required />
        <${Field} label="Project" hint=${projects.error?.message}><select name="project">${names.map(each => html`<option>${each}</option>`)}</select><//>
        <fieldset class="choices"><legend>Scopes</legend>${SCOPES.map(([scope, text]) => html`<div>
          <label><input type="checkbox" name=${`scope-${scope}`} defaultChecked=${scope === "inference"} aria-describedby=${`about-${scope}`} /> ${scope}</label>
          <small id=${`about-${scope}`}>${text}</small></div>`)}</fieldset>
        <${Field} label="Priority"><select name="priority">${PRIORITIES.map(each => html`<option value=${each}>${enumName(each, "PRIORITY_")}</option>`)}</select><//>
        <${Field} label="Days until it expires" name="days" type="number" min="1" hint="Empty: never" />
        <${Field} label="Models" name="models" hint="Names with spaces between them; not with the scope inference. Empty: all" />
        <${Field} label="Networks" name="networks" hint="Such as 10.1.0.0/16, with spaces between them. Empty: all" /><//></details>
    <details class="panel"><summary>New project</summary>
      <${Form} label="New project" submit="Create" onSubmit=${createProject}>
        <${Field} label="Id" name="id" required hint="Lower-case letters, digits, . _ and -" /><${Field} label="Title" name="title" maxlength="255" /><//></details></div>
    ${rotated && html`<section class="card" aria-label="New secret">
      <${Form} key=${rotated.id} label=${`New secret for ${rotated.name}`} submit="Rotate" onSubmit=${rotate}>
        <h2>New secret for ${rotated.name}</h2>
        <${Field} label="Hours that the present secret stays valid" name="hours" type="number" min="0" max="2160" defaultValue="24" required />
        <${Field} label="Days until the key expires" name="days" type="number" min="1" hint="Empty: as before" />
        <div><button type="button" onClick=${() => setRotated(null)}>Cancel</button></div><//></section>`}
    ${secret && html`<section class="card secret" role="status" aria-label="New key">
      <p>This key is shown once. Copy it now.</p><pre tabindex="0" aria-label="Secret">${secret}</pre>
      <${Action} run=${() => copyText(secret)}>Copy the key<//>
      <button onClick=${() => setSecret(null)}>Hide it</button></section>`}
    <${Table} caption="Keys" rows=${keys.data} columns=${[
      ["Name", row => html`<strong>${row.name}</strong><br /><code>${row.prefix}…</code>`],
      ["Project", row => row.project],
      ["Scopes", row => row.scopes.map(each => enumName(each, "KEY_SCOPE_")).join(", ")],
      ["Only for", row => [...row.models, ...row.networks].join(", ") || "–"],
      ["State", row => html`<${Status} value=${describeState(row)} />`],
      ["Created", row => html`<${Time} value=${row.create_time} />`],
      ["Expires", row => html`<${Time} value=${row.expire_time} />`],
      ["Old secret ends", row => html`<${Time} value=${row.old_expire_time} />`],
      ["Last use", row => html`<${Time} value=${row.last_use_time} />`],
      ["", row => describeState(row) !== "active" ? null : html`<div class="row">
        <button type="button" onClick=${() => setRotated(row)}>Rotate</button>
        <${Action} class="danger" confirm=${`Revoke ${row.name}? This cannot be undone.`} run=${async () => { await remove(`admin/keys/${row.id}`); await keys.reload(); }}>Revoke<//></div>`],
    ]} />`;
}

function describeState({ revoke_time: revoked, expire_time: expires }) {
  if (revoked) return "revoked";
  return expires && new Date(expires) < new Date() ? "expired" : "active";
}
