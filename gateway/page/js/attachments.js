/** Files that the user adds to a message, as parts of a chat message. The server reads the text of documents, such as code. */

const SOUNDS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/flac": "flac", "audio/x-flac": "flac", "audio/mpeg": "mp3" };
/** Read a file: `{name, url, kind, part}`. Throws an Error if the model cannot read its kind. */
export async function readAttachment(file, modalities) {
  const kind = file.type.startsWith("image/") && file.type !== "image/svg+xml" ? "image" : file.type.startsWith("audio/") ? "audio" : "document";
  if (kind !== "document" && !modalities.includes(kind)) {
    throw new Error(`${file.name}: this model does not read ${kind === "image" ? "pictures" : "sound"}.`);
  }
  const url = await readDataUrl(file);
  return { name: file.name, kind, url, part: toPart(file, kind, url) };
}

function toPart(file, kind, url) {
  if (kind === "image") return { type: "image_url", image_url: { url } };
  if (kind === "document") return { type: "file", file: { filename: file.name, file_data: url } };
  const format = SOUNDS[file.type] ?? file.name.split(".").at(-1).toLowerCase();
  return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } };
}

function readDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name}: it cannot be read.`));
    reader.readAsDataURL(file);
  });
}
