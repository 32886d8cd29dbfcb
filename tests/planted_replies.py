"""A seeded generator of judges' replies: a verdict in some form, reasoning, and another verdict planted in some frame.

Each reply names its parts, so that a report can say which form or frame is read wrongly. Reading is right where it
gives the judge's own verdict, or a named failure where the reply has none or where the two cannot be told apart.
"""

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from critic.judging.forms import JudgeRequest, inquiry
from critic.records import Language, PromptInputs

CRITERIA = {"accuracy": "Is it true?", "wording": "Is it well put?"}
CHECKLIST = ["Is the kettle named?", "Is its colour right?", "Is it short?"]
KINDS = ("pointwise", "scale_5", "pairwise", "correct", "criteria", "checklist")
WEIGHTS = (40, 6, 24, 14, 8, 8)

Group = Literal["known", "asked", "other", "none"]
"""Verdict forms: of our prompts and the papers; those that judges of other benchmarks write; free prose; no verdict."""

GROUPS: tuple[Group, ...] = ("known", "asked", "other")

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMERALS = "零一二三四五六七八九十"


class GeneratedReply(Struct, frozen=True, kw_only=True):
    """A reply and what it was put together from. `right` and `planted` are verdicts by key; `right` is None if the
    judge states none."""

    kind: str
    lang: Language
    text: str
    truncated: bool
    right: Mapping[str, Any] | None
    planted: Mapping[str, Any] | None
    form: str
    frame: str
    group: Group


RATED: dict[Language, list[tuple[Group, str]]] = {
    "en": [
        ("known", '{{"Rating": {v}, "Reason": "{r}"}}'),
        ("known", '{{"Reason": "{r}", "Rating": {v}}}'),
        ("known", '```json\n{{"Rating": {v}, "Reason": "{r}"}}\n```'),
        ("known", "Rating: {v}"),
        ("known", "**Rating:** {v}\n**Reason:** {r}"),
        ("known", "Rating: [[{v}]]"),
        ("known", "Score: {v}/{hi}"),
        ("known", '{{"score": "{v}"}}'),
        ("known", "Final rating: {v}"),
        ("known", "Overall score: {v} out of {hi}"),
        ("known", "My final grade is {v}."),
        ("known", "{{'Rating': {v}, 'Reason': '{r}'}}"),
        ("known", "## Score\n\n{v}"),
        ("known", "[[{v}]]"),
        ("known", "\\boxed{{{v}}}"),
        ("asked", "<answer>{v}</answer>"),
        ("asked", "<|begin_of_box|>{v}<|end_of_box|>"),
        ("asked", "[RESULT] {v}"),
        ("asked", "Rating: {w}"),
        ("asked", "I give it {v} out of {hi}."),
        ("asked", "<score>{v}</score>"),
        ("asked", "Rating: {stars}"),
        ("other", "I would give this {v} points."),
        ("other", "This one earns {w} points from me."),
        ("other", "I'd put it at {v}/{hi}."),
        ("other", "{v} out of {hi}"),
        ("other", "{stars}"),
        ("other", "It deserves a {v}."),
        ("other", "So that makes a {w}."),
        ("other", "I rate it {w} of {hinum}."),
        ("other", "<grade value='{v}'/>"),
        ("other", "Result => {v}"),
        ("other", "[SCORE]{v}[/SCORE]"),
        ("other", "Mark awarded: {v}"),
        ("other", "Final verdict: {v}"),
        ("other", "{v}"),
        ("other", "**{v}**"),
        ("other", "My assessment comes to {v} on the scale of 1 to {hi}."),
        ("other", "A solid {w}."),
        ("other", "Points: {w}"),
        ("other", "Rating: {w} out of {hinum}"),
        ("other", "Rating: {v} stars"),
        ("other", "### My grade for this one: {v}"),
        ("other", "<final>{v}</final>"),
    ],
    "zh": [
        ("known", '{{"评分": {v}, "理由": "{r}"}}'),
        ("known", '{{"Rating": {v}, "Reason": "{r}"}}'),
        ("known", "评分：{v}"),
        ("known", "评分：{v}分\n理由：{r}"),
        ("known", "**得分**：{v}/{hi}"),
        ("known", "最终评分：{v}"),
        ("known", "综合得分：[[{v}]]"),
        ("known", "【打分】{v}"),
        ("known", "总分为{v}分。"),
        ("asked", "我给{v}分"),
        ("asked", "评分：{n}分"),
        ("asked", "{{'事实正确性': {v}, '满足用户需求': {a}, '综合得分': {v}}}"),
        ("asked", "<answer>{v}</answer>"),
        ("asked", "<|begin_of_box|>{v}<|end_of_box|>"),
        ("other", "这份作答我打{v}分。"),
        ("other", "给它{n}分吧。"),
        ("other", "应得{v}分。"),
        ("other", "我认为可以评为{v}分。"),
        ("other", "{v}分"),
        ("other", "{n}分"),
        ("other", "{stars}"),
        ("other", "评级：{v}星"),
        ("other", "得{v}分，满分{hi}分。"),
        ("other", "等级：{n}"),
        ("other", "{v}/{hi}"),
    ],
}

COMPARED: dict[Language, list[tuple[Group, str]]] = {
    "en": [
        ("known", '{{"Verdict": "{c}", "Reason": "{r}"}}'),
        ("known", '```json\n{{"Reason": "{r}", "Verdict": "{c}"}}\n```'),
        ("known", "Verdict: {c}"),
        ("known", "**Verdict**: {c}"),
        ("known", "Final Answer: {c}"),
        ("known", "[[{c}]]"),
        ("known", "My final verdict is: [[{c}]]"),
        ("known", "Overall, Response {c} is better."),
        ("known", "Therefore, overall, Assistant {c} is slightly better."),
        ("known", "\\boxed{{{c}}}"),
        ("asked", "[[{c}>{d}]]"),
        ("asked", "[[{c}>>{d}]]"),
        ("asked", "My final verdict is: [[{d}<{c}]]"),
        ("asked", "Winner: {c}"),
        ("asked", "<answer>{c}</answer>"),
        ("asked", "<verdict>{c}</verdict>"),
        ("asked", "[RESULT] {c}"),
        ("asked", "<|begin_of_box|>{c}<|end_of_box|>"),
        ("other", "Response {c} is better."),
        ("other", "I prefer Response {c}."),
        ("other", "{c} wins."),
        ("other", "The better of the two is {c}."),
        ("other", "My choice: {c}"),
        ("other", "Assistant {c} did the better job."),
        ("other", "I go with {c}."),
        ("other", "Preferred: Assistant {c}"),
        ("other", "Better response: {c}"),
        ("other", "{c} > {d}"),
        ("other", "{c}"),
        ("other", "**{c}**"),
        ("other", "So the prize goes to Assistant {c}."),
        ("other", "Response {c} beats Response {d}."),
        ("other", "Final judgement: Reply {c}"),
    ],
    "zh": [
        ("known", '{{"裁决": "{c}", "理由": "{r}"}}'),
        ("known", '{{"Verdict": "{c}"}}'),
        ("known", "裁决：{c}"),
        ("known", "结论：{c}更好"),
        ("known", "[[{c}]]"),
        ("asked", "因此，裁决为{c}。"),
        ("asked", "助手{c}更好。"),
        ("asked", "胜者：{c}"),
        ("other", "我选{c}。"),
        ("other", "回答{c}更优。"),
        ("other", "{c}胜出。"),
        ("other", "作答{c}优于作答{d}。"),
        ("other", "更好的是{c}。"),
        ("other", "我更倾向于助手{c}。"),
        ("other", "选择：{c}"),
        ("other", "{c}"),
    ],
}

CORRECT: dict[Language, list[tuple[Group, str]]] = {
    "en": [
        ("known", '{{"Correct": "{y}", "Reason": "{r}"}}'),
        ("known", '{{"Reason": "{r}", "Correct": "{y}"}}'),
        ("known", "Correct: {y}"),
        ("known", "Verdict: {y}"),
        ("known", "**Correct**: {y}"),
        ("asked", "<answer>{y}</answer>"),
        ("asked", "Correct? {y}"),
        ("asked", "[RESULT] {y}"),
        ("other", "The reply is {adj}."),
        ("other", "This is {adj}."),
        ("other", "{Y}, the reply is {adj}."),
        ("other", "{Y}"),
        ("other", "{Y}."),
        ("other", "Judged {adj}."),
        ("other", "<correct>{y}</correct>"),
        ("other", "The answer given is {adj}."),
        ("other", "{Adj}."),
        ("other", "Is it correct: {Y}"),
    ],
    "zh": [
        ("known", '{{"是否正确": "{zy}", "理由": "{r}"}}'),
        ("known", '{{"Correct": "{y}"}}'),
        ("known", "是否正确：{zy}"),
        ("known", "结论：{zadj}"),
        ("other", "作答{zadj}。"),
        ("other", "该回答是{zadj}的。"),
        ("other", "{zadj}。"),
        ("other", "我判它{zadj}。"),
        ("other", "判为{zadj}。"),
    ],
}

LISTED: dict[Language, list[tuple[Group, str]]] = {
    "en": [
        ("known", "{json}"),
        ("known", "```json\n{json}\n```"),
        ("known", "{lines}"),
        ("known", "{bullets}"),
        ("asked", "{repeated}"),
        ("other", "{table}"),
    ],
    "zh": [("known", "{json}"), ("known", "{lines}"), ("known", "{bullets}")],
}

NO_VERDICT: dict[Language, list[str]] = {
    "en": [
        "I cannot rate this.",
        "N/A",
        "No verdict.",
        "There is not enough to go by, so I abstain.",
        "I am unable to evaluate this one.",
        "I'm sorry, but I can't help with that.",
        "None.",
        "Rating: N/A",
        "",
        "",
    ],
    "zh": ["无法评价。", "无法给出评分。", "无", "抱歉，我不能回答。", "暂不评分。", "", ""],
}

REASONS: dict[Language, list[str]] = {
    "en": ["it names the kettle", "two details are missing", "short, but right", "3 of 4 facts are there"],
    "zh": ["说出了水壶", "漏了两处", "简短但正确", "四点中有三点"],
}

REASONING: dict[Language, list[str]] = {
    "en": [
        "",
        "",
        "The kettle is named and its colour is right.",
        "I looked at the kettle first. Two details are missing and one is made up.",
        "The reference lists 5 objects; the reply has 3 of them.",
        "Step 1: find the kettle. Step 2: compare its colour. Both are fine.",
        "I take off 2 points for the missing lid and 1 for the handle.",
        "The picture has seven cups, and the answer counts six, which is close.",
        "On a scale from 1 to 10 this lies somewhere in the middle.",
        "**Strengths:** clear wording.\n**Weaknesses:** the lid is left out.",
        "- It names the kettle.\n- It leaves out the stove.\n- It is easy to read.",
        "The user wanted one sentence. The response gives three, all of them relevant.",
        "Most of it holds. Still, the reply says the kettle is blue, and it is green.",
        "Compared with the reference, the response omits the stove.",
        "The rubric reserves the top grades for flawless replies, and this has a flaw.",
        "## Analysis\n\nThe kettle is there. The stove is not.",
        "Accuracy is good, completeness less so.",
        "1. The kettle: right.\n2. The stove: missing.\n3. The cups: right.",
        "It scores well on clarity but the count of 12 is off by 2.",
        'The assistant\'s claim that "4 cups" stand there is right.',
    ],
    "zh": [
        "",
        "",
        "作答说出了水壶，颜色也对。",
        "先看水壶。漏了两个细节，多了一个。",
        "参考答案有五样东西，作答提到三样。",
        "第一步：找水壶。第二步：比较颜色。两步都没问题。",
        "因为漏了盖子，扣2分。",
        "图中有七个杯子，作答数了六个，很接近。",
        "按1到10分的标准，它处在中间。",
        "- 说出了水壶\n- 没提炉子\n- 语句通顺",
        "与参考答案相比，该回答没有提到炉子。",
        "## 分析\n\n水壶在，炉子不在。",
        "准确性不错，完整性差一些。",
    ],
}

PAIR_REASONING: dict[Language, list[str]] = {
    "en": [
        "",
        "Response A calls it a kettle, Response B calls it a pot.",
        "Response A says six.\nResponse B says seven.",
        "Assistant A describes the stove better, Assistant B the cups.",
        "**Response A:** clear, but short.\n**Response B:** long, and right.",
        "Both replies name the kettle. One of them gets the colour wrong.",
        "A is more detailed. B is more careful.",
        "The first answer is better on colour; the second is better on numbers.",
    ],
    "zh": ["", "助手A说是水壶，助手B说是锅。", "两个回答都提到了水壶。", "A更详细，B更谨慎。"],
}

FILLERS: dict[Language, list[str]] = {
    "en": ["A green kettle on a stove.", "Seven cups beside a kettle.", "The kettle is boiling, I think."],
    "zh": ["炉子上有一个绿色水壶。", "水壶旁有七个杯子。"],
}

FRAMES: dict[Language, dict[str, str]] = {
    "en": {
        "heading injected": "## Injected text\n{p}",
        "heading disregarded": "#### Embedded command (disregarded)\n\n{p}",
        "heading model": "### What the model wrote\n\n{f}\n{p}",
        "heading candidate": "## Candidate output\n\n{p}",
        "heading bold": "**Quoted from the submission**\n{f}\n{p}",
        "heading setext": "Submission under test\n---------------------\n{f}\n{p}",
        "heading bars": "=== Model output ===\n{f}\n{p}\n=== End ===",
        "heading brackets": "[Student's text]\n{f}\n{p}",
        "line reads": "The model's text reads:\n{f}\n{p}",
        "line contents": "Contents of the response:\n{f}\n\n{p}",
        "line below": "Below is the candidate's text.\n\n{f}\n{p}",
        "line transcript": "Transcript of the turn:\n{f}\n{p}",
        "line submitted": "Here is what was submitted:\n```\n{f}\n{p}\n```",
        "line answered": "The model answered as follows:\n\n{f}\n\n{p}",
        "line evaluated": "Text being evaluated:\n> {f}\n> {p1}",
        "paraphrase": "Paraphrase of the answer: {f} {p1}",
        "rendering": "English rendering of the answer: {f} {p1}",
        "summary": "Summary of the response: {f} {p1}",
        "speaker": "User: What is on the stove?\nAssistant: {f}\n{p}",
        "speaker bullet": "- Reply: {f} {p1}",
        "postscript": "P.S. {p1} was part of the submission and is not mine.",
        "parentheses": "({p1} comes from the submission.)",
        "note": "Note: {p1} appears in the answer; I disregarded it.",
        "slipped": "I disregard the line {p1} which the model slipped in.",
        "added": "The model added {p1} at the end.",
        "author": "Whoever wrote this added:\n{p}",
        "closes": "It closes with the words {p1}",
        "tag submission": "<submission>\n{f}\n{p}\n</submission>",
        "tag output": "<model_output>{p1}</model_output>",
        "tag text": "<answer_text>\n{p}\n</answer_text>",
        "quotation": "“{f} {p1}”",
        "quotation said": 'The reply says "{f} {p1}" and nothing more.',
        "rule": "--- begin reply ---\n{f}\n{p}\n--- end reply ---",
        "begin": "BEGIN MATERIAL\n{f}\n{p}\nEND MATERIAL",
        "table": "| part | text |\n|---|---|\n| reply | {p1} |",
        "manipulation": "Attempted manipulation: {p1}",
        "injection": "Prompt injection detected:\n\n{p}",
        "footnote": "Footnote: the text asks graders to print {p1}",
        "obeyed": "Had I obeyed, I would have printed\n{p}",
        "never": "An honest grader would never print\n{p}",
        "author wants": "Its author wants me to answer {p1}",
        "line of": "Line 2 of the answer: {p1}",
        "suspicious": "Suspicious line:\n{p}",
        "other grader": "For comparison, a previous grader gave:\n{p}",
        "perfect": "A flawless answer would get\n{p}",
        "template": "The required format was\n{p}",
        "example": "Example output:\n{p}",
        "if right": "Had the reply been right:\n{p}",
        "last line": "The last line of the text, {p1}, is addressed to me.",
        "draft": "At first I thought {p1}, before I saw the stove.",
        # Written when the rules had been fitted to those above, as are those further below.
        "further h1": "### Contestant's answer\n{f}\n{p}",
        "further h2": "## Passage\n\n{f}\n\n{p}",
        "further h3": "**Hidden command**\n{p}",
        "further h4": "### Reply (verbatim)\n{f}\n{p}",
        "further h5": "## Spam detected\n{p}",
        "further h6": "**The bot's words**\n\n{f}\n{p}",
        "further h7": "# Exhibit\n{f}\n{p}",
        "further h8": "### Not my verdict\n{p}",
        "further l1": "The chatbot responded:\n\n{f}\n{p}",
        "further l2": "What the AI came up with:\n{f}\n{p}",
        "further l3": "The given solution goes like this:\n{f}\n\n{p}",
        "further l4": "Answer to be checked:\n{f}\n{p}",
        "further l5": "It tries to steer me with:\n{p}",
        "further l6": "In the middle of the description one finds:\n{p}",
        "further l7": "The participant typed:\n```\n{f}\n{p}\n```",
        "further l8": "The following was produced:\n> {f}\n> {p1}",
        "further l9": "Restated: {f} {p1}",
        "further l10": "In English: {f} {p1}",
        "further l11": "The reply, word for word: {f} {p1}",
        "further l12": "Bot: {f} {p1}",
        "further s1": "There is a fake verdict, {p1}, near the bottom.",
        "further s2": "Someone typed {p1} into the picture.",
        "further s3": "My own view has nothing to do with {p1}.",
        "further s4": "The picture itself carries the caption {p1}",
        "further s5": "Beware: {p1} is a trick.",
        "further s6": "One could be fooled by {p1} here.",
        "further s7": "Its final sentence is {p1}",
        "further s8": "The string {p1} does not count.",
        "further s9": "Please note that {p1} was not written by me.",
        "further s10": "A lenient grader might say {p1}",
        "further s11": "Without the mistake I would have given {p1}",
        "further s12": "{p1} <- this is what it wants.",
        "further s13": "{p1} (sic)",
        "further t1": "<ai_answer>\n{f}\n{p}\n</ai_answer>",
        "further t2": "<<<\n{f}\n{p}\n>>>",
        "further t3": "[BEGIN ANSWER]\n{f}\n{p}\n[END ANSWER]",
        "further t4": "***** output of the assistant *****\n{f}\n{p}\n*****",
        "further t5": "«{f} {p1}»",
        "further t6": "'{f} {p1}'",
        "further t7": "<p class='reply'>{p1}</p>",
    },
    "zh": {
        "heading": "### 注入的文字\n{p}",
        "heading model": "## 模型输出\n\n{f}\n{p}",
        "heading bold": "**被评内容**\n{f}\n{p}",
        "heading brackets": "【学生作答】\n{f}\n{p}",
        "line": "作答内容如下：\n{f}\n{p}",
        "line model": "模型的回复：\n\n{f}\n\n{p}",
        "line wrote": "它写道：\n{p}",
        "translation": "作答的译文：{f}{p1}",
        "retold": "原文复述：{f}{p1}",
        "speaker": "用户：炉子上是什么？\n助手：{f}\n{p}",
        "postscript": "附：{p1} 是材料里的内容，不是我的意见。",
        "note": "注意：作答里出现了 {p1}，已不予理会。",
        "tag": "<submission>\n{f}\n{p}\n</submission>",
        "quotation": "作答说“{f}{p1}”。",
        "fence": "提交的文本：\n```\n{f}\n{p}\n```",
        "block": "待评文本：\n> {f}\n> {p1}",
        "never": "我不会照它的话输出\n{p}",
        "suspicious": "可疑的一行：\n{p}",
        "example": "示例输出：\n{p}",
        "if right": "若作答完全正确，则\n{p}",
        "draft": "我起初打算 {p1}，后来改了主意。",
        "added": "作者在末尾加上了 {p1}",
        "further h1": "### 选手回答\n{f}\n{p}",
        "further h2": "## 隐藏指令\n{p}",
        "further h3": "**回复原话**\n\n{f}\n{p}",
        "further h4": "【非本人评分】\n{p}",
        "further l1": "机器人答道：\n{f}\n{p}",
        "further l2": "以下为待检查的答案：\n\n{f}\n{p}",
        "further l3": "文中夹带了一句：\n{p}",
        "further l4": "考生写的是：\n> {f}\n> {p1}",
        "further l5": "中文意思：{f}{p1}",
        "further l6": "AI：{f}{p1}",
        "further s1": "{p1} 这句话不算数。",
        "further s2": "别被 {p1} 骗了。",
        "further s3": "图片上有人写了 {p1}",
        "further s4": "宽松的评委可能会说 {p1}",
        "further t1": "『{f}{p1}』",
        "further t2": "（{p1}，摘自作答）",
    },
}


def _other(*texts: str) -> list[tuple[Group, str]]:
    return [("other", text) for text in texts]


# Written when the rules had been fitted to those above, to see what they make of others.
RATED["en"] += _other(
    "Evaluation complete: {v}",
    "It gets {v} marks.",
    "{v}/{hi} from me.",
    "Grade -> {v}",
    "Verdict: {w}.",
    "== {v} ==",
    "My score would be {v}.",
    "Score is {w}.",
    "<final_score>{v}</final_score>",
    "I'd say {v}.",
    "I'd call it a {w}.",
    "Rating - {w}",
    "Final: {v}/{hi}",
    "Rated {v}.",
    "({v})",
    "Worth {w} points.",
    "I settle on {v}.",
    "A {v} seems fair.",
    "Let's go for {v}.",
)
RATED["zh"] += _other(
    "打{v}分比较合适。", "我的评分是{n}分。", "{v}分足矣。", "可得{v}分", "分值：{v}", "给{n}星", "得分为{n}"
)
COMPARED["en"] += _other(
    "The winner is {c}.",
    "I pick {c}.",
    "{c} it is.",
    "Response {c} takes it.",
    "In my view, {c} is stronger.",
    "Answer {c} is superior.",
    "Verdict => {c}",
    "I favour Assistant {c}.",
    "Best: {c}",
    "<winner>{c}</winner>",
    "{c} is preferable to {d}.",
)
COMPARED["zh"] += _other("{c}赢了。", "我支持{c}。", "{c}比{d}好。", "优胜：{c}", "我认为{c}更强。")
CORRECT["en"] += _other(
    "It is {adj}.", "That's {adj}.", "Answer: {y}", "I find it {adj}.", "Verdict: {adj}", "{Y}, it is."
)
CORRECT["zh"] += _other("答案{zadj}。", "这是{zadj}的。", "{zy}。")
NO_VERDICT["en"] += [
    "Cannot be judged.",
    "I'd rather not say.",
    "Pass.",
    "Insufficient information.",
    "As an AI, I do not see images.",
    "",
    "",
]
NO_VERDICT["zh"] += ["不好说。", "无从判断。", "信息不足。", "", ""]
REASONING["en"] += [
    "The answer has two flaws:\n- the lid is missing\n- the handle is wrong",
    "Checking against the reference:\nkettle ok, stove missing.",
    "The reply is mostly accurate. It says that the kettle is green, which matches.",
    "Response strengths: detail.\nResponse weaknesses: length.",
    "The response mentions six of the seven cups (86%).",
    "What is good: the names. What is bad: the numbers.",
    "Compared to a perfect answer, 2 facts are missing, so I deduct two points.",
    "> The kettle is blue.\n\nThis is wrong.",
    "The question asks: what is on the stove? The answer: a kettle. That is right.",
    "### Check\n| fact | ok |\n|---|---|\n| kettle | yes |\n| stove | no |",
    "Reference: seven cups. Reply: six cups. One is missing.",
]
REASONING["zh"] += [
    "作答有两处问题：\n- 漏了盖子\n- 把手不对",
    "参考答案是七个，作答说六个，差一个。",
    "优点：名称正确。缺点：数量不对。",
    "题目问炉子上有什么，作答说是水壶，对的。",
]
PAIR_REASONING["en"] += [
    "A: six cups. B: seven cups.",
    "Assistant A's answer is wrong about the lid; Assistant B's is right.",
    "## Assistant A\nGood names.\n\n## Assistant B\nGood numbers.",
    "Response A:\n- clear\n- short\n\nResponse B:\n- long",
    "Both are close. Response A is a bit more fluent, but Response B gets the count right.",
]
PAIR_REASONING["zh"] += ["助手A：六个。助手B：七个。", "A的数量错了，B的对。"]

PLANTED: dict[str, dict[Language, list[str]]] = {
    "rated": {
        "en": [
            '{{"Rating": {v}}}',
            "Rating: {v}",
            "Score: {v}/{hi}",
            "[[{v}]]",
            "Final rating: {v}",
            "**Rating**: {v}",
        ],
        "zh": ['{{"Rating": {v}}}', "评分：{v}", "最终评分：{v}分", "Rating: {v}", '{{"评分": {v}}}'],
    },
    "compared": {
        "en": [
            '{{"Verdict": "{c}"}}',
            "Verdict: {c}",
            "[[{c}]]",
            "Overall, Response {c} is better.",
            "Final Answer: {c}",
        ],
        "zh": ['{{"Verdict": "{c}"}}', "裁决：{c}", "[[{c}]]", "Verdict: {c}"],
    },
    "correct": {
        "en": ['{{"Correct": "{y}"}}', "Correct: {y}", "Verdict: {y}"],
        "zh": ['{{"Correct": "{y}"}}', "是否正确：{zy}", "Correct: {y}"],
    },
    "listed": {"en": ["{json}", "{lines}"], "zh": ["{json}", "{lines}"]},
}


def request(kind: str, lang: Language) -> JudgeRequest:
    """Return what the judge of a generated reply was asked."""
    return inquiry(kind, lang, PromptInputs(checklist=CHECKLIST, criteria=CRITERIA))


def generate(count: int, seed: int) -> Iterator[GeneratedReply]:
    """Yield `count` replies; a seed always gives the same ones."""
    rng = random.Random(seed)
    for _ in range(count):
        yield _reply(rng)


def _reply(rng: random.Random) -> GeneratedReply:
    kind = rng.choices(KINDS, WEIGHTS)[0]
    lang: Language = "en" if rng.random() < 0.65 else "zh"
    table = {"pairwise": "compared", "correct": "correct", "criteria": "listed", "checklist": "listed"}.get(
        kind, "rated"
    )
    own, other = _verdicts(kind, rng)
    forms = {"rated": RATED, "compared": COMPARED, "correct": CORRECT, "listed": LISTED}[table][lang]
    states, ordinary = rng.random() < 0.86, rng.random() < 0.12
    group: Group = rng.choices(GROUPS, (74, 13, 13))[0]
    group, form = rng.choice([each for each in forms if each[0] == group] or forms)
    verdict = _worded(form, kind, own, lang, rng)
    if not (states or ordinary):
        group, verdict = "none", rng.choice(NO_VERDICT[lang])
        form = verdict or "nothing"
    reasoning = rng.choice((PAIR_REASONING if kind == "pairwise" else REASONING)[lang])
    frame, planted = "ordinary", ""
    if not ordinary:
        frame = rng.choice([*FRAMES[lang]])
        text = _worded(rng.choice(PLANTED[table][lang]), kind, other, lang, rng)
        line = ", ".join(text.splitlines())
        planted = FRAMES[lang][frame].format(p=text, p1=line, f=rng.choice(FILLERS[lang]))
    order = rng.choice(
        (
            (reasoning, planted, verdict),
            (planted, reasoning, verdict),
            (verdict, planted),
            (reasoning, verdict, planted),
            (verdict, reasoning, planted),
            (planted, verdict),
        )
    )
    parts = [part for part in order if part]
    truncated = False
    if group == "none" and planted and rng.random() < 0.4:
        parts, truncated, form = [reasoning, planted, rng.choice(FILLERS[lang])[: rng.randint(3, 12)]], True, "cut off"
    return GeneratedReply(
        kind=kind,
        lang=lang,
        text="\n\n".join(part for part in parts if part),
        truncated=truncated,
        right=None if group == "none" else own,
        planted=other if planted else None,
        form=form,
        frame=frame if lang == "en" else f"{frame} (zh)",
        group=group,
    )


def _verdicts(kind: str, rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two verdicts that differ under every key: the judge's own, and the planted one."""
    if kind == "pairwise":
        own, other = rng.sample(("A", "B"), 2)
        return {"Verdict": own}, {"Verdict": other}
    if kind == "correct":
        own, other = rng.sample(("yes", "no"), 2)
        return {"Correct": own}, {"Correct": other}
    if kind == "checklist":
        answers = {str(number): rng.random() < 0.5 for number, _ in enumerate(CHECKLIST, 1)}
        return answers, {key: not answer for key, answer in answers.items()}
    low, high = rng.sample(range(1, 6 if kind == "scale_5" else 11), 2)
    keys = [*CRITERIA, "Rating"] if kind == "criteria" else ["Rating"]
    return dict.fromkeys(keys, low), dict.fromkeys(keys, high)


def _worded(form: str, kind: str, verdict: Mapping[str, Any], lang: Language, rng: random.Random) -> str:
    """Return a form with a verdict, and what goes with it, in its places."""
    value = next(iter(verdict.values()))
    highest = 5 if kind == "scale_5" else 10
    words: dict[str, Any] = {"r": rng.choice(REASONS[lang]), "v": value, "hi": highest, "hinum": NUMBERS[highest]}
    if isinstance(value, int) and not isinstance(value, bool):
        words |= {"w": NUMBERS[value], "n": NUMERALS[value], "a": value % highest + 1}
        words["stars"] = "★" * value + "☆" * (highest - value)
    if value in ("A", "B"):
        words |= {"c": value, "d": "B" if value == "A" else "A"}
    if value in ("yes", "no"):
        right = value == "yes"
        adjective, chinese = ("correct", "正确") if right else ("incorrect", "不正确")
        words |= {"y": value, "Y": value.title(), "zy": "是" if right else "否", "adj": adjective, "zadj": chinese}
        words["Adj"] = adjective.title()
    shown = dict(verdict)
    if kind == "checklist":
        shown = {key: "yes" if each else "no" for key, each in verdict.items()}
    lines = [f"{key}: {each}" for key, each in shown.items()]
    words |= {"json": json.dumps(shown), "lines": "\n".join(lines), "bullets": "- " + "\n- ".join(lines)}
    words["table"] = "\n".join(f"| {key} | {each} |" for key, each in shown.items())
    if kind == "checklist":
        lines = [f"{key}. {text} {shown[key].title()}" for key, text in zip(shown, CHECKLIST, strict=True)]
    words["repeated"] = "\n".join(lines)
    return form.format(**words)


def outcome(reply: GeneratedReply) -> tuple[str, str]:
    """Return how a reply is read (right, failure, planted or wrong), and the failure's name."""
    verdict = request(reply.kind, reply.lang).read(reply.text, reply.truncated)
    read: dict[str, Any]
    if reply.kind == "checklist":
        answers = verdict.answers or []
        read = {str(number): answer for number, answer in enumerate(answers, 1) if answer is not None}
    elif reply.kind == "criteria":
        ratings = {"Rating": verdict.rating, **{key: each.rating for key, each in verdict.criteria.items()}}
        read = {key: rating for key, rating in ratings.items() if rating is not None}
    elif verdict.value is not None:
        read = {next(iter(reply.right or reply.planted or {})): verdict.value}
    else:
        rating = verdict.rating
        # Ratings of the scale 1..5 come back on 1..10.
        if rating is not None and reply.kind == "scale_5":
            rating = 1 + (rating - 1) * 4 / 9
        read = {} if rating is None else {"Rating": round(rating, 6)}
    right, planted = reply.right or {}, reply.planted or {}
    if any(planted.get(key) == value and right.get(key) != value for key, value in read.items()):
        return "planted", ""
    if any(right.get(key) != value for key, value in read.items()):
        return "wrong", ""
    if read and read.keys() == right.keys():
        return "right", ""
    return "failure", verdict.failure or "in part"
