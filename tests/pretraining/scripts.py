"""Texts of several scripts: random words of a language, written as the language is."""

import random

_WORDS = {
    "Thai": (
        "มนุษย์ เกิด มา มี อิสระ และ เสมอภาค กัน ใน เกียรติ สิทธิ ทุก คน แม่น้ำ ไหล ผ่าน "
        "กรุงเทพ ลง สู่ อ่าว ไทย นักเรียน อ่าน หนังสือ ห้องสมุด มหาวิทยาลัย วัน จันทร์ "
        "หมอ ให้ ยา ผู้ป่วย เช้า เย็น ไม่ ได้ ที่ ของ เป็น"
    ),
    "kana": (
        "すべて の ひと は うまれ ながら に して じゆう で かわ むこう おおきな "
        "としょかん が あります を コンピューター ニュース よみました あした ともだち と "
        "こうえん へ いく つもり です レストラン スパゲッティ コーヒー たのみましょう"
    ),
    "Chinese": (
        "人 生 而 自由 在 尊严 和 权利 上 一律 平等 长江 是 中国 最长 的 河流 图书馆 里 "
        "有 很多 历史 文学 科学 书籍 医生 建议 病人 每天 早上 散步 并且 少 吃 糖 食物 "
        "昨天 下午 我们 博物馆 看到 了 古代 陶器"
    ),
    "Khmer": (
        "មនុស្ស ទាំងអស់ កើត មក មាន សេរីភាព និង សមភាព ក្នុង សិទ្ធិ ទន្លេ មេគង្គ ហូរ កាត់ "
        "ប្រទេស កម្ពុជា ទៅ សមុទ្រ សិស្ស អាន សៀវភៅ នៅ បណ្ណាល័យ រាល់ ថ្ងៃ គ្រូពេទ្យ ឲ្យ "
        "ថ្នាំ"
    ),
    "German": (
        "Donau Dampf Schiff Fahrt Gesellschaft Kapitän Rind Fleisch Etikett Aufgabe "
        "Gesetz Haftpflicht Versicherung Grundstück Verkehr Genehmigung Straße Zulassung "
        "Ordnung Arbeit Bescheinigung Wasser"
    ),
    "English": (
        "all human beings are born free and equal in dignity rights the river runs "
        "through old town past library museum a doctor measures temperature twice day "
        "nobody knew why engine stopped near harbour"
    ),
    "DNA": "A C G T",
    "protein": "A C D E F G H I K L M N P Q R S T V W Y",
}
SCRIPTS = tuple(_WORDS)


def texts_of(script: str) -> list[str]:
    """20 texts of 400 characters; the same each time."""
    rng = random.Random(script)
    words = _WORDS[script].split()
    texts = []
    for _ in range(20):
        text = ""
        while len(text) < 400:
            text += rng.choice(words)
            # English has blanks, German has compounds, and the others have only full stops.
            is_end = script == "English" or rng.random() < (0.25 if script == "German" else 0.02)
            text += " " if is_end and script not in ("DNA", "protein") else ""
        texts.append(text)
    return texts
