// Providers of the Vercel AI SDK, by the name of their package.
import { APICallError, Output, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run } from "./scenario.mjs";

const ROOT = BASE_URL.replace(/\/v1$/, "");
const NAME = process.argv[2];
const [PACKAGE, kind] = NAME.split("#");
const module = await import(PACKAGE);
const create = Object.entries(module).find(([name]) => /^create[A-Z]/.test(name))[1];
const BASES = {
  "@ai-sdk/azure": { baseURL: `${ROOT}/openai` },
  "ollama-ai-provider-v2": { baseURL: `${ROOT}/api` },
  "@ai-sdk/openai-compatible": { name: "corral", includeUsage: true, supportsStructuredOutputs: true },
};
const provider = create({ baseURL: BASE_URL, apiKey: KEY, ...BASES[PACKAGE] });
const modelOf = (name) => (kind ? provider[kind](name) : provider(name));
const options = { model: modelOf(MODEL), temperature: 0, maxOutputTokens: 100, maxRetries: 0 };
if (PACKAGE === "ollama-ai-provider-v2") options.providerOptions = { ollama: { think: false } };
const city = (name) => ({
  type: "object",
  properties: { [name]: { type: "string" } },
  required: [name],
  additionalProperties: false,
});

const isCounted = (usage) => PACKAGE !== "@ai-sdk/openai-compatible" || usage.outputTokens > 0;

async function answer() {
  const { text, usage } = await generateText({ ...options, prompt: QUESTION });
  return text.includes(ANSWER) && isCounted(usage);
}

await run({
  answer,
  stream: async () => {
    const result = streamText({ ...options, prompt: QUESTION });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    return pieces.join("").includes(ANSWER) && isCounted(await result.usage);
  },
  tools: async () => {
    const cities = [];
    const weather = tool({
      description: "The weather of a city.",
      inputSchema: jsonSchema(city("city")),
      execute: ({ city: name }) => {
        cities.push(name);
        return `sunny in ${name}`;
      },
    });
    const messages = [{ role: "user", content: WEATHER }];
    const first = await generateText({
      ...options,
      messages,
      tools: { get_weather: weather },
      stopWhen: stepCountIs(3),
    });
    messages.push(...first.response.messages, { role: "user", content: "Thank you!" });
    const second = await generateText({ ...options, messages, tools: { get_weather: weather } });
    return cities.length > 0 && second.finishReason;
  },
  structured: async () => {
    const { output } = await generateText({
      ...options,
      prompt: "Name a city.",
      output: Output.object({ schema: jsonSchema(city("name")) }),
    });
    return typeof output.name === "string";
  },
  error: async () => {
    try {
      await generateText({ ...options, model: modelOf("no-such-model"), prompt: "?" });
    } catch (problem) {
      return APICallError.isInstance(problem) && problem.statusCode === 404;
    }
    return false;
  },
  cancel: async () => {
    const abort = new AbortController();
    const long = { ...options, maxOutputTokens: 500, abortSignal: abort.signal };
    for await (const _ of streamText({ ...long, prompt: QUESTION }).textStream) {
      abort.abort();
      break;
    }
    return answer();
  },
});
