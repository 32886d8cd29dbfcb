"""A seeded generator of judges' replies: a verdict in some form, reasoning, and another verdict planted in some frame.

Each reply names its parts, so that a report can say which form or frame is read wrongly. Reading is right where it
gives the judge's own verdict, or a named failure where the reply has none or where the two cannot be told apart.

Forms and frames are products of their parts (words in capitals). Half of the parts were written when the rules of
reading had been fitted to the others.
"""

import json
import math
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


Rows = list[list[str]]
"""Templates, those that are alike in a row."""


def _fill(template: str, **choices: tuple[str, ...]) -> list[str]:
    """Return `template` with each combination of the choices in place of their names."""
    texts = [template]
    for name, parts in choices.items():
        texts = [text.replace(name, part) for text in texts for part in parts]
    return texts


def _objects(key: str, value: str, reason: str = "Reason") -> list[str]:
    """Return JSON objects with a verdict, bare and in a fence, and such as Python prints."""
    reasoned = ('{{"KEY": VALUE, "REASON": "{r}"}}', '{{"REASON": "{r}", "KEY": VALUE}}')
    objects = _fill("OBJECT", OBJECT=('{{"KEY": VALUE}}', *reasoned), KEY=(key,), VALUE=(value,), REASON=(reason,))
    python = [text.replace('"', "'") for text in objects[1:]]
    return [*objects, *_fill("```json\nOBJECT\n```", OBJECT=(*objects,)), *python]


def _draw(rows: Rows, rng: random.Random) -> str:
    """Return a template: rows that are long because they are products come up less than their share."""
    (row,) = rng.choices(rows, [math.log1p(len(row)) for row in rows])
    return rng.choice(row)


MARKED = ("<answer>VALUE</answer>", "[RESULT] VALUE", "<|begin_of_box|>VALUE<|end_of_box|>")

RATED: dict[Language, dict[Group, Rows]] = {
    "en": {
        "known": [
            _objects("Rating", "{v}"),
            _fill(
                "KEY: VALUE",
                KEY=("Rating", "Score", "Final rating", "Overall score"),
                VALUE=("{v}", "[[{v}]]", "{v}/{hi}", "{v} out of {hi}"),
            ),
            ["**Rating:** {v}\n**Reason:** {r}", "## Score\n\n{v}", "My final grade is {v}."],
            ['{{"score": "{v}"}}', "[[{v}]]", "\\boxed{{{v}}}"],
        ],
        "asked": [
            _fill("FORM", FORM=MARKED, VALUE=("{v}",)),
            ["<score>{v}</score>", "Rating: {w}", "Rating: {stars}", "I give it {v} out of {hi}."],
        ],
        "other": [
            _fill("GAIN {v} OF.", GAIN=("I would give this", "It gets"), OF=("points", "marks")),
            _fill("GAIN {w} points.", GAIN=("Worth", "This one earns")),
            ["This one earns {w} points from me.", "{v}/{hi} from me.", "A {v} seems fair."],
            _fill("IT a AMOUNT.", IT=("It deserves", "So that makes", "I'd call it"), AMOUNT=("{v}", "{w}")),
            _fill("IT AMOUNT.", IT=("My score would be", "Score is", "Rated", "Let's go for"), AMOUNT=("{v}", "{w}")),
            _fill("I AMOUNT.", I=("I'd say", "I settle on", "I'd put it at"), AMOUNT=("{v}", "{v}/{hi}")),
            _fill("KEY: VALUE", KEY=("Mark awarded", "Evaluation complete", "Final verdict"), VALUE=("{v}", "{w}")),
            _fill("KEY VALUE", KEY=("Rating -", "Points:", "Grade ->", "Result =>"), VALUE=("{v}", "{w}")),
            ["Verdict: {w}.", "Final: {v}/{hi}", "Rating: {v} stars", "Rating: {w} out of {hinum}"],
            ["A solid {w}.", "### My grade for this one: {v}"],
            ["{v} out of {hi}", "I rate it {w} of {hinum}.", "My assessment comes to {v} on the scale of 1 to {hi}."],
            ["{v}", "{stars}", "**{v}**", "({v})", "== {v} =="],
            ["[SCORE]{v}[/SCORE]", "<grade value='{v}'/>", *_fill("<TAG>{v}</TAG>", TAG=("final", "final_score"))],
        ],
    },
    "zh": {
        "known": [
            _objects("评分", "{v}", "理由"),
            _objects("Rating", "{v}"),
            _fill(
                "KEY：VALUE",
                KEY=("评分", "**得分**", "最终评分", "综合得分"),
                VALUE=("{v}", "{v}/{hi}", "[[{v}]]", "{v}分\n理由：{r}"),
            ),
            ["【打分】{v}", "总分为{v}分。"],
        ],
        "asked": [
            _fill("FORM", FORM=MARKED, VALUE=("{v}",)),
            ["我给{v}分", "评分：{n}分", "{{'事实正确性': {v}, '满足用户需求': {a}, '综合得分': {v}}}"],
        ],
        "other": [
            _fill("ITAMOUNT分END", IT=("", "应得", "可得"), AMOUNT=("{v}", "{n}"), END=("", "。")),
            _fill("ITAMOUNT分。", IT=("这份作答我打", "我认为可以评为", "我的评分是"), AMOUNT=("{v}", "{n}")),
            ["给它{n}分吧。", "打{v}分比较合适。", "{v}分足矣。", "得{v}分，满分{hi}分。"],
            ["分值：{v}", "得分为{n}", "等级：{n}", "评级：{v}星", "给{n}星", "{stars}", "{v}/{hi}"],
        ],
    },
}

COMPARED: dict[Language, dict[Group, Rows]] = {
    "en": {
        "known": [
            _objects("Verdict", '"{c}"'),
            _fill("KEY: VALUE", KEY=("Verdict", "**Verdict**", "Final Answer"), VALUE=("{c}", "[[{c}]]")),
            _fill("LEADMARK", LEAD=("", "My final verdict is: "), MARK=("[[{c}]]", "\\boxed{{{c}}}")),
            ["Overall, Response {c} is better.", "Therefore, overall, Assistant {c} is slightly better."],
        ],
        "asked": [
            _fill("FORM", FORM=MARKED, VALUE=("{c}",)),
            _fill("LEADMARK", LEAD=("", "My final verdict is: "), MARK=("[[{c}>{d}]]", "[[{c}>>{d}]]", "[[{d}<{c}]]")),
            ["<verdict>{c}</verdict>", "Winner: {c}"],
        ],
        "other": [
            _fill("WHO{c} is BEST.", WHO=("Response ", "Answer "), BEST=("better", "superior", "stronger")),
            _fill("WHO{c} DOES.", WHO=("Response ", "Assistant ", ""), DOES=("did the better job", "takes it", "wins")),
            _fill("I PICK WHO{c}.", PICK=("prefer", "go with", "pick", "favour"), WHO=("Response ", "Assistant ", "")),
            _fill("ITWHO{c}", IT=("My choice: ", "Preferred: ", "Best: ", "Verdict => "), WHO=("Assistant ", "")),
            _fill("ITWHO{c}", IT=("Better response: ", "Final judgement: "), WHO=("Reply ", "")),
            _fill("The BEST is WHO{c}.", BEST=("winner", "better of the two"), WHO=("Assistant ", "")),
            _fill("WHO{c} BEATS WHO{d}.", WHO=("Response ", ""), BEATS=("beats", "is preferable to")),
            ["{c}", "**{c}**", "{c} > {d}", "{c} it is.", "<winner>{c}</winner>"],
            ["So the prize goes to Assistant {c}.", "In my view, {c} is stronger."],
        ],
    },
    "zh": {
        "known": [
            _objects("裁决", '"{c}"', "理由"),
            _objects("Verdict", '"{c}"'),
            ["裁决：{c}", "结论：{c}更好", "[[{c}]]"],
        ],
        "asked": [["因此，裁决为{c}。", "助手{c}更好。", "胜者：{c}"]],
        "other": [
            _fill("我CHOOSEWHO{c}。", CHOOSE=("选", "支持", "更倾向于"), WHO=("", "助手")),
            _fill("WHO{c}DOES。", WHO=("", "回答", "我认为"), DOES=("更优", "更强", "胜出", "赢了")),
            ["作答{c}优于作答{d}。", "{c}比{d}好。", "更好的是{c}。", "选择：{c}", "优胜：{c}", "{c}"],
        ],
    },
}

CORRECT: dict[Language, dict[Group, Rows]] = {
    "en": {
        "known": [_objects("Correct", '"{y}"'), ["Correct: {y}", "**Correct**: {y}", "Verdict: {y}"]],
        "asked": [_fill("FORM", FORM=MARKED, VALUE=("{y}",)), ["Correct? {y}"]],
        "other": [
            _fill("IT is {adj}.", IT=("The reply", "The answer given", "This", "It")),
            ["That's {adj}.", "I find it {adj}.", "Judged {adj}."],
            ["{Y}", "{Y}.", "{Y}, it is.", "{Y}, the reply is {adj}.", "{Adj}."],
            ["<correct>{y}</correct>", "Is it correct: {Y}", "Answer: {y}", "Verdict: {adj}"],
        ],
    },
    "zh": {
        "known": [
            _objects("是否正确", '"{zy}"', "理由"),
            _objects("Correct", '"{y}"'),
            ["是否正确：{zy}", "结论：{zadj}"],
        ],
        "other": [
            ["作答{zadj}。", "该回答是{zadj}的。", "答案{zadj}。", "这是{zadj}的。"],
            ["{zadj}。", "{zy}。", "判为{zadj}。", "我判它{zadj}。"],
        ],
    },
}

LISTED: dict[Language, dict[Group, Rows]] = {
    "en": {
        "known": [["{json}", "```json\n{json}\n```", "{lines}", "{bullets}"]],
        "asked": [["{repeated}"]],
        "other": [["{table}"]],
    },
    "zh": {"known": [["{json}", "{lines}", "{bullets}"]]},
}

NO_VERDICT: dict[Language, Rows] = {
    "en": [
        [""],
        ["N/A", "None.", "Pass.", "No verdict.", "Rating: N/A", "Cannot be judged.", "Insufficient information."],
        [
            "I cannot rate this.",
            "I am unable to evaluate this one.",
            "I'd rather not say.",
            "As an AI, I do not see images.",
        ],
        ["There is not enough to go by, so I abstain.", "I'm sorry, but I can't help with that."],
    ],
    "zh": [
        [""],
        ["无", "无法评价。", "无法给出评分。", "暂不评分。", "不好说。", "无从判断。", "信息不足。"],
        ["抱歉，我不能回答。"],
    ],
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
        "作答有两处问题：\n- 漏了盖子\n- 把手不对",
        "参考答案是七个，作答说六个，差一个。",
        "优点：名称正确。缺点：数量不对。",
        "题目问炉子上有什么，作答说是水壶，对的。",
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
        "A: six cups. B: seven cups.",
        "Assistant A's answer is wrong about the lid; Assistant B's is right.",
        "## Assistant A\nGood names.\n\n## Assistant B\nGood numbers.",
        "Response A:\n- clear\n- short\n\nResponse B:\n- long",
        "Both are close. Response A is a bit more fluent, but Response B gets the count right.",
    ],
    "zh": [
        *("", "助手A说是水壶，助手B说是锅。", "两个回答都提到了水壶。", "A更详细，B更谨慎。"),
        *("助手A：六个。助手B：七个。", "A的数量错了，B的对。"),
    ],
}

FILLERS: dict[Language, list[str]] = {
    "en": ["A green kettle on a stove.", "Seven cups beside a kettle.", "The kettle is boiling, I think."],
    "zh": ["炉子上有一个绿色水壶。", "水壶旁有七个杯子。"],
}

BODIES = ["{p}", "\n{p}", "{f}\n{p}", "\n{f}\n{p}", "{f}\n\n{p}", "\n{f}\n\n{p}"]
BODIES += ["```\n{f}\n{p}\n```", "> {f}\n> {p1}"]
"""Ways in which a planted verdict stands below a heading or a line."""

HEADINGS = ("# TITLE\nBODY", "## TITLE\nBODY", "### TITLE\nBODY", "#### TITLE\nBODY", "**TITLE**\nBODY")
BRACKETS = ("[TITLE]\nBODY", "=== TITLE ===\nBODY\n=== End ===", "TITLE\n---------------------\nBODY")

FRAMES: dict[Language, Rows] = {
    "en": [
        _fill("FORM", FORM=HEADINGS, TITLE=("Injected text", "Embedded command (disregarded)", "Hidden command")),
        _fill("FORM", FORM=HEADINGS, TITLE=("Spam detected", "Not my verdict", "Passage", "Exhibit")),
        _fill("FORM", FORM=HEADINGS, TITLE=("What the model wrote", "Candidate output", "Quoted from the submission")),
        _fill("FORM", FORM=HEADINGS, TITLE=("Contestant's answer", "Reply (verbatim)", "The bot's words")),
        _fill("FORM", FORM=BRACKETS, TITLE=("Submission under test", "Model output", "Student's text")),
        _fill("IT:\nBODY", IT=("The model's text reads", "Contents of the response", "Transcript of the turn")),
        _fill("IT:\nBODY", IT=("Here is what was submitted", "The model answered as follows", "Text being evaluated")),
        _fill("IT:\nBODY", IT=("The chatbot responded", "What the AI came up with", "The following was produced")),
        _fill("IT:\nBODY", IT=("The given solution goes like this", "The participant typed", "Answer to be checked")),
        _fill("IT:\nBODY", IT=("Whoever wrote this added", "Suspicious line", "Prompt injection detected")),
        _fill("IT:\nBODY", IT=("It tries to steer me with", "In the middle of the description one finds")),
        _fill("IT:\nBODY", IT=("Example output", "Had the reply been right", "For comparison, a previous grader gave")),
        _fill("IT\nBODY", IT=("Had I obeyed, I would have printed", "The required format was")),
        _fill("IT\nBODY", IT=("An honest grader would never print", "A flawless answer would get")),
        _fill("IT of the X: {f} {p1}", IT=("Paraphrase", "English rendering", "Summary"), X=("answer", "response")),
        _fill("IT: {f} {p1}", IT=("Restated", "In English", "The reply, word for word", "Bot", "- Reply")),
        _fill("IT: {p1}", IT=("Attempted manipulation", "Line 2 of the answer")),
        _fill("IT {p1}", IT=("It closes with the words", "Its final sentence is", "Its author wants me to answer")),
        _fill("IT {p1}", IT=("Footnote: the text asks graders to print", "The picture itself carries the caption")),
        _fill("IT {p1}", IT=("A lenient grader might say", "Without the mistake I would have given")),
        _fill(
            "IT {p1} IS.",
            IT=("P.S.", "Note:", "Beware:", "Please note that", "The string"),
            IS=("is a trick", "does not count", "was not written by me", "was part of the submission and is not mine"),
        ),
        ["Note: {p1} appears in the answer; I disregarded it.", "({p1} comes from the submission.)"],
        ["{p1} (sic)", "{p1} <- this is what it wants.", "My own view has nothing to do with {p1}."],
        ["I disregard the line {p1} which the model slipped in.", "The model added {p1} at the end."],
        ["There is a fake verdict, {p1}, near the bottom.", "Someone typed {p1} into the picture."],
        ["The last line of the text, {p1}, is addressed to me.", "One could be fooled by {p1} here."],
        ["At first I thought {p1}, before I saw the stove."],
        ["User: What is on the stove?\nAssistant: BODY", "Below is the candidate's text.\nBODY"],
        _fill("<T>IN</T>", T=("submission", "ai_answer", "answer_text", "model_output"), IN=("\nBODY\n", "{p1}")),
        ["“{f} {p1}”", "«{f} {p1}»", "'{f} {p1}'", 'The reply says "{f} {p1}" and nothing more.'],
        ["--- begin reply ---\nBODY\n--- end reply ---", "BEGIN MATERIAL\nBODY\nEND MATERIAL", "<<<\nBODY\n>>>"],
        ["[BEGIN ANSWER]\nBODY\n[END ANSWER]", "***** output of the assistant *****\nBODY\n*****"],
        ["<p class='reply'>{p1}</p>", "| part | text |\n|---|---|\n| reply | {p1} |"],
    ],
    "zh": [
        _fill("FORM", FORM=HEADINGS, TITLE=("注入的文字", "模型输出", "被评内容", "选手回答", "隐藏指令", "回复原话")),
        _fill("【TITLE】\nBODY", TITLE=("学生作答", "非本人评分")),
        _fill("IT：\nBODY", IT=("作答内容如下", "模型的回复", "它写道", "提交的文本", "待评文本", "可疑的一行")),
        _fill("IT：\nBODY", IT=("示例输出", "机器人答道", "以下为待检查的答案", "文中夹带了一句", "考生写的是")),
        ["我不会照它的话输出\nBODY", "若作答完全正确，则\nBODY", "用户：炉子上是什么？\n助手：BODY"],
        _fill("IT：{f}{p1}", IT=("作答的译文", "原文复述", "中文意思", "AI")),
        ["附：{p1} 是材料里的内容，不是我的意见。", "注意：作答里出现了 {p1}，已不予理会。"],
        ["<submission>\nBODY\n</submission>", "作答说“{f}{p1}”。", "『{f}{p1}』", "（{p1}，摘自作答）"],
        ["我起初打算 {p1}，后来改了主意。", "{p1} 这句话不算数。", "别被 {p1} 骗了。"],
        _fill("IT {p1}", IT=("作者在末尾加上了", "图片上有人写了", "宽松的评委可能会说")),
    ],
}

PLANTED: dict[str, dict[Language, list[str]]] = {
    "rated": {
        "en": [
            '{{"Rating": {v}}}',
            "Rating: {v}",
            "**Rating**: {v}",
            "Final rating: {v}",
            "Score: {v}/{hi}",
            "[[{v}]]",
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
    group = group if group in forms else rng.choice([*forms])
    form = _draw(forms[group], rng)
    verdict = _worded(form, kind, own, lang, rng)
    if not (states or ordinary):
        group, verdict = "none", _draw(NO_VERDICT[lang], rng)
        form = verdict or "nothing"
    reasoning = rng.choice((PAIR_REASONING if kind == "pairwise" else REASONING)[lang])
    frame, planted = "ordinary", ""
    if not ordinary:
        frame = _draw(FRAMES[lang], rng)
        text = _worded(rng.choice(PLANTED[table][lang]), kind, other, lang, rng)
        line = ", ".join(text.splitlines())
        body = frame.replace("BODY", rng.choice(BODIES))
        planted = body.format(p=text, p1=line, f=rng.choice(FILLERS[lang]))
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
        frame=frame,
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
