// The Vercel AI SDK with its OpenAI-compatible provider.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { ANSWER, BASE_URL, KEY, MODEL, QUESTION, WEATHER, run } from "./scenario.mjs";

const provider = createOpenAICompatible({
  name: "corral",
  baseURL: BASE_URL,
  apiKey: KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const options = { model: provider(MODEL), temperature: 0, maxOutputTokens: 100, maxRetries: 0 };
const city = (name) => ({
  type: "object",
  properties: { [name]: { type: "string" } },
  required: [name],
  additionalProperties: false,
});

async function answer() {
  const { text, usage } = await generateText({ ...options, prompt: QUESTION });
  return text.includes(ANSWER) && usage.outputTokens > 0;
}

await run({
  answer,
  stream: async () => {
    const result = streamText({ ...options, prompt: QUESTION });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);
    return pieces.join("").includes(ANSWER) && (await result.usage).outputTokens > 0;
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
      await generateText({ ...options, model: provider("no-such-model"), prompt: "?" });
    } catch (problem) {
      return APICallError.isInstance(problem) && problem.statusCode === 404;
    }
    return false;
  },
  cancel: async () => {
    const abort = new AbortController();
    const result = streamText({ ...options, maxOutputTokens: 500, prompt: QUESTION, abortSignal: abort.signal });
    for await (const _ of result.textStream) {
      abort.abort();
      break;
    }
    return answer();
  },
});
