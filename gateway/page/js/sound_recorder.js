/** Records what the microphone hears, as a WAV file that models read: 16 kHz, mono, 16 bits. */

const RATE = 16_000;
const HEADER_BYTES = 44;
const PIECE_MS = 100;

/** Whether the browser lets this page record: only over HTTPS or on loopback. */
export const canRecord = Boolean(navigator.mediaDevices?.getUserMedia && window.MediaRecorder);

/**
 * Begin to record. Once there is sound, returns a function that ends it and returns the file; null if `leaving` was aborted
 * before. The abort ends the recording. Throws an Error if there is no microphone, it gives no sound, or the user refuses.
 * @param {AbortSignal} leaving
 */
export async function startRecording(leaving) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true })
    .catch(error => { throw new Error(error.name === "NotFoundError" ? "There is no microphone." : "The browser does not let this page use the microphone."); });
  const release = () => { for (const track of stream.getTracks()) track.stop(); };
  leaving.addEventListener("abort", release);
  if (leaving.aborted) {
    release();
    return null;
  }
  const recorder = new MediaRecorder(stream);
  const pieces = [];
  const ended = new Promise(resolve => { recorder.onstop = resolve; });
  const begun = new Promise(resolve => {
    recorder.ondataavailable = ({ data }) => {
      if (data.size) pieces.push(data);
      if (pieces.length) resolve();
    };
  });
  recorder.start(PIECE_MS);
  await Promise.race([begun, ended]); // what ends before cannot be decoded
  if (leaving.aborted) return null;
  if (!pieces.length) throw new Error("The microphone gives no sound.");
  return async () => {
    recorder.stop();
    release();
    await ended;
    const bytes = await new Blob(pieces).arrayBuffer();
    const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(bytes); // resampled to RATE
    return new File([toWav(mixDown(sound))], "recording.wav", { type: "audio/wav" });
  };
}

/** The mean of the channels. */
function mixDown(sound) {
  const channels = Array.from({ length: sound.numberOfChannels }, (_, index) => sound.getChannelData(index));
  return channels[0].map((_, at) => channels.reduce((sum, channel) => sum + channel[at], 0) / channels.length);
}

function toWav(samples) {
  const view = new DataView(new ArrayBuffer(HEADER_BYTES + 2 * samples.length));
  const write = (at, text) => [...text].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, view.byteLength - 8, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true); // bytes of the format
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true); // bytes a second
  view.setUint16(32, 2, true); // bytes of a frame
  view.setUint16(34, 16, true); // bits
  write(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, at) => view.setInt16(HEADER_BYTES + 2 * at, Math.max(-1, Math.min(1, sample)) * 0x7fff, true));
  return view;
}
