// What every client does, as scenario.py has it.
export const BASE_URL = process.env.CORRAL_BASE_URL;
export const KEY = "none";
export const MODEL = "demo-chat";
export const QUESTION = "What is the capital of France?";
export const ANSWER = "Paris";
export const WEATHER = "What is the weather in Paris?";
const CHECKS = ["answer", "stream", "tools", "structured", "error", "cancel"];

export async function run(checks) {
  const results = {};
  for (const name of CHECKS) {
    if (!(name in checks)) {
      results[name] = "not offered";
      continue;
    }
    try {
      const value = await checks[name]();
      results[name] = value ? "" : `unexpected: ${JSON.stringify(value)}`;
    } catch (problem) {
      console.error(problem);
      results[name] = `${problem.name}: ${problem.message}`;
    }
  }
  console.log(JSON.stringify(results));
}
