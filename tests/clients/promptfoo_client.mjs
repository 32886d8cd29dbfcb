// Runs promptfoo's own model-graded assertions against a judge, where promptfoo is installed by npm.
//
//     node promptfoo_client.mjs http://127.0.0.1:8000/v1
//
// Prints one JSON line an assertion, as reads.py does: its type, its score, and what went wrong if no verdict was read.
import { assertions } from 'promptfoo';

const url = process.argv[2];
const provider = { id: 'openai:chat:gpt-4', config: { apiBaseUrl: url, apiKey: 'sk-none' } };
const grading = { provider };
const question = 'How many apples lie on the table?';
const answer = 'I see four apples.';

const calls = {
  'llm-rubric': () => assertions.matchesLlmRubric('It counts the apples.', answer, grading),
  factuality: () => assertions.matchesFactuality(question, 'Four apples.', answer, grading),
  'model-graded-closedqa': () => assertions.matchesClosedQa(question, 'It counts.', answer, grading),
};
for (const [name, call] of Object.entries(calls)) {
  let result;
  try {
    result = await call();
  } catch (error) {
    result = { reason: `${error}` };
  }
  const read = typeof result.pass === 'boolean' && !/did not match|Could not/.test(result.reason ?? 'Could not');
  const problem = read ? null : String(result.reason).slice(0, 300);
  console.log(JSON.stringify({ call: name, value: result.score, problem }));
}
process.exit(0);
