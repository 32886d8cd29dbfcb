"""Translate the Chinese words with which requests describe the form of a reply to English words that the reader knows.

This suffices to read the form; it is not a translation. Quoted text is kept as it is, because the reply must contain
it. All functions are pure.
"""

from string import ascii_letters, digits

import regex as re

HAN = "\u4e00-\u9fff"
WIDE = {ord(mark) + 0xFEE0: mark for mark in digits + ascii_letters}
WIDE |= str.maketrans({"“": '"', "”": '"', "「": '"', "」": '"', "『": '"', "』": '"', "‘": "'", "’": "'"})
MARKS = str.maketrans(
    {"（": "(", "）": ")", "【": "[", "】": "]", "～": "~", "－": "-", "—": "-", "，": ", ", "、": ", "}
    | {"。": ". ", "；": "; ", "！": "! ", "？": "? ", "：": ": "}
)
QUOTED = re.compile(r"(?P<mark>[\"'`])(?P<words>[^\"'`\n]{1,80})(?P=mark)")
KEPT = "\ue000"
"""Placeholder for quoted text while the words around it are translated."""

ENDS = re.compile(rf"(?:以|用) ?(?P<quoted>{QUOTED.pattern}) ?(?:作为)?(?:结尾|结束|收尾)")
ANSWER = "(?:输出|返回|给出|回复|回答|作答|写出|提供|生成)"

PHRASES = [
    (r"(?<=[0-9]) ?分? ?(?:到|至) ?(?=-?[0-9])", " to "),
    (r"满分(?:为|是)? ?([0-9]+) ?分?", r" score from 0 to \1 "),
    (r"(?<=[0-9]) ?(?:个?字|词|句)", " words "),
    (r"([0-9]+ ?(?:to|-|~) ?[0-9]+) ?分? ?(?:之间)? ?的? ?(?:分数|得分|评分|分值|分)", r" score from \1 points "),
    (r"不要|不得|请勿", " do not "),
    (rf"(?:以|用|按照?|使用|采用|请按)[^。\n{{}}]{{0,20}}?JSON[^。\n{{}}]{{0,12}}?{ANSWER}", " Output in JSON format "),
    (rf"(?:只|仅|直接)(?:能|需要?|要|可以?|须)?{ANSWER}", " Output only "),
    (rf"(?:请|必须|应该?|要|并){ANSWER}|输出|返回|给出", " output "),
    (r"最后一行", " the last line "),
    (r"评价|评估|评判|评测|判断|判定", " evaluate "),
    (r"分数|得分|总分|评分|打分", " score "),
    (r"比较|对比", " compare "),
    (r"回答|答案|答复|作答", " answer "),
    (r"回复|响应", " response "),
    (r"问题|提问", " question "),
    (r"整数", " integer "),
    (r"数字", " number "),
    (r"格式", " format "),
    (r"理由|原因|解释|说明", " reason "),
    (r"或者|或", " or "),
]


def translate_to_english(text: str) -> str:
    """Return the text with Chinese words about the form of a reply replaced by English ones.

    A text without Chinese is returned unchanged.
    """
    if not re.search(f"[{HAN}]", text):
        return text
    # Quotation marks are part of this phrase: it is read before what they hold is set aside.
    text = ENDS.sub(r"end with \g<quoted>", text.translate(WIDE).replace(KEPT, ""))
    # A reply has to say quoted words as they are.
    quoted = (match["words"] for match in QUOTED.finditer(text))
    text = QUOTED.sub(f'"{KEPT}"', text).translate(MARKS)
    for pattern, english in PHRASES:
        text = re.sub(pattern, english, text)
    text = re.sub(f"(?<=[{HAN}])(?=[!-~])|(?<=[!-~])(?=[{HAN}])", " ", text)
    text = re.sub(r"(?<=[\[(]) +| +(?=[\])])", "", re.sub(" +", " ", text))
    restored: str = re.sub(KEPT, lambda _: next(quoted), text)
    return restored
