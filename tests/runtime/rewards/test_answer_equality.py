"""Which notations of an answer are equal, family by family, and which only look alike."""

import pytest

from grpo_runtime.rewards.answer_equality import are_equal
from grpo_runtime.rewards.answer_notation import cleaned


def is_paid(answer: str, written: str) -> bool:
    return are_equal(cleaned(answer), cleaned(written))


def table(text: str) -> list[list[str]]:
    """The answers, and what is written for them, of lines such as `answer ;; written ;; written`."""
    return [line.strip().split(" ;; ") for line in text.strip().splitlines()]


def differing(rows: list[list[str]], *, should_be_paid: bool) -> list[tuple[str, str]]:
    return [
        (answer, one)
        for answer, *written in rows
        for one in written
        if is_paid(answer, one) != should_be_paid
    ]


SAME = {
    "matrices": r"""
        \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} ;; \begin{pmatrix}1&2\\3&4\end{pmatrix}
        \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} ;; \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}
        \begin{pmatrix} 1 \\ 0.5 \end{pmatrix} ;; \begin{pmatrix} 1 \\ \frac12 \\ \end{pmatrix}
        """,
    "notations": r"""
        1:2 ;; 1 : 2 ;; \text{1:2}
        x \equiv 3 \pmod{5} ;; x\equiv3\pmod 5
        1010_2 ;; 1010_{2}
        \overline{AB} ;; \overline{ AB }
        """,
    "words": r"""
        no ;; No ;; \text{no} ;; \text{No}
        NE ;; \text{NE}
        AB ;; \text{AB}
        x < -1 \text{ or } x > 3 ;; x > 3 \text{ or } x < -1 ;; x<-1 or x>3
        Alice and Bob ;; Bob and Alice ;; Alice, Bob ;; \text{Alice and Bob}
        1 \text{ or } 2 ;; 1, 2 ;; 2 \text{ and } 1
        x = 1 \text{ or } x = 2 ;; x = 1, x = 2 ;; x = 2 \text{ and } x = 1
        3 to 1 ;; \text{3 to 1}
        """,
    "thousands": r"""
        1234 ;; \$1,234 ;; \$1,234.00 ;; $1,234 ;; +1,234 ;; (1,234) ;; \approx 1,234 ;; 1{,}234 ;; -(-1,234)
        \frac{1}{1000} ;; \frac{1}{1,000}
        \$32,348 ;; 32348 ;; 32,348 ;; \$32348 ;; $32,348.00
        (1,234) ;; (1, 234)
        1234567 ;; 1,234,567
        """,
    "spaces": r"""
        42 ;; 42\, ;; \,42\, ;; 42\; ;; 42\  ;; $42\,$ ;; 42\ . ;; ~42~
        x\, ;; x
        """,
    "measures": r"""
        5 \text{ m} ;; 5 m ;; 5 ;; 5\text{m} ;; 5m
        5 \text{ cm} ;; 5cm ;; 5 cm ;; \text{5 cm} ;; 5\,\mathrm{cm}
        12 ;; \text{12 minutes} ;; 12 minutes ;; 12 \text{ m/s}
        8\pi \text{ cm}^2 ;; 8\pi
        3 million dollars ;; 3 \text{ million dollars} ;; \$3 \text{ million} ;; 3000000
        5 \text{ dollars} ;; \$5
        """,
    "names and chains": r"""
        42 ;; |AB| = 42 ;; P(3) = 42 ;; \text{Area} = 42 ;; Area = 42 ;; \angle ABC = 42^\circ ;; x_1 = 42
        \angle A = 30^\circ ;; 30 ;; 30^\circ
        10 ;; 18 - 8 = 10 ;; x = 18 - 8 = 10
        \sqrt{2} ;; \sqrt{2} \approx 1.41 ;; x = \sqrt{2} \approx 1.414
        1.41 ;; \sqrt{2} \approx 1.41 ;; x \approx 1.41
        ab = 12 ;; ba = 12 ;; 12 = ab
        a = b = c ;; a=b=c
        x = y ;; y = x
        """,
    "percentages": r"""
        0.5 ;; 50\%
        5 ;; 5\%
        1 ;; 100\%
        50\% ;; 50 ;; 0.5 ;; \frac{1}{2} ;; 50 percent ;; 50\text{ percent}
        33\frac{1}{3} ;; 33\frac{1}{3}\%
        """,
    "twins": r"""
        3 ;; \log_2 8 ;; \log_{2}8 ;; 3.0 ;; \text{The answer is } 3
        \log_2 5 ;; \log_{2}{5} ;; \frac{\ln 5}{\ln 2}
        \frac{1}{3} ;; 0.\overline{3} ;; 0.3333333 ;; \frac13 ;; ⅓
        \frac{1}{6} ;; 0.1\overline{6}
        \emptyset ;; \varnothing ;; ∅ ;; \{\}
        x \le 3 ;; x<=3 ;; x \leq 3 ;; x ≤ 3 ;; 3 \ge x ;; x\leqslant3
        \binom{5}{2} ;; \binom52 ;; 10 ;; \dbinom{5}{2}
        1 < x < 3 ;; 3>x>1 ;; 3 > x > 1 ;; (1,3)
        D ;; \mathrm{(D)} ;; \textbf{(D)} ;; (D)
        42 ;; \bf 42 ;; {\bf 42} ;; \color{red}{42} ;; \underline{42} ;; {42}
        42 ;; \mathbf{42} ;; \textbf{42} ;; ４２
        \sqrt{3} ;; √3 ;; sqrt(3) ;; \sqrt3
        4 ;; 2²
        12 ;; 3·4 ;; 3×4 ;; 3\cdot4
        \frac{1}{2} ;; ½
        3\frac{1}{2} ;; 3½ ;; 3 1/2
        \infty ;; ∞ ;; infinity
        \pm 3 ;; ±3 ;; 3, -3
        -5 ;; –5 ;; −5
        """,
    "unions": r"""
        (-\infty,-1) \cup (3,\infty) ;; (3,\infty) \cup (-\infty,-1) ;; (-∞,-1)∪(3,∞)
        A \cup B ;; A\cup B
        """,
}

OTHER = {
    "matrices": r"""
        \begin{pmatrix} 1 \\ 12 \end{pmatrix} ;; \begin{pmatrix} 11 \\ 2 \end{pmatrix}
        \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} ;; \begin{pmatrix} 1 & 2 & 3 & 4 \end{pmatrix}
        \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} ;; \begin{pmatrix} 1 & \\ 3 & 4 \end{pmatrix}
        \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} ;; \begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix} ;; -2
        """,
    "notations": r"""
        0.\overline{12} ;; 0.\overline{1}2 ;; 0.12 ;; 0.1\overline{2} ;; 0.12\overline{1}
        0.\overline{27} ;; 0\overline{27} ;; 0.27
        1:.5 ;; 1:5
        R:r ;; r:R
        2^{10}:1 ;; 2^{1}0:1
        2^{1}0:1 ;; 2^{10}:1
        \frac{1}{23}:1 ;; \frac{12}{3}:1
        \sqrt{12}:1 ;; \sqrt{1}2:1
        2^{n+1} \equiv 1 ;; 2^n+1 \equiv 1
        21_{34} ;; 21_{3}4
        \overline{AB} ;; \overline{ab} ;; AB
        x \equiv 3 \pmod{5} ;; X \equiv 3 \pmod 5 ;; x \equiv 3 \pmod{15}
        1:2 ;; 1:2' ;; 2:1 ;; 12 ;; 1/2
        """,
    "words": r"""
        x < -1 \text{ or } x > 3 ;; x < -1 \text{ and } x > 3 ;; x < -1, x > 3 ;; x < -1
        x < 1 or x > 2 and x < 5 ;; x < 1 and x > 2 or x < 5 ;; x < 5 or x > 2 and x < 1
        A and B ;; A or B
        \text{A and B} ;; \text{A or B}
        1st and 3rd ;; 1st or 3rd
        x = 1 \text{ and } y = 2 ;; x = 1 \text{ or } y = 2
        C, A, B ;; A, B, C
        no ;; on ;; not
        July 4 ;; uJly 4 ;; July 5
        NE ;; EN ;; ne
        AB ;; BA ;; ab
        CA ;; AC
        3 to 1 ;; 1 to 3
        1 in 6 ;; 6 in 1
        3 out of 4 ;; 4 out of 3
        3 by 4 ;; 4 by 3
        n \text{ is odd} ;; N \text{ is odd}
        .5 \text{ of all} ;; 5 \text{ of all}
        """,
    "thousands": r"""
        1234 ;; 1, 234 ;; (1, 234) ;; \{1,234\} ;; [1,234] ;; 1,2345 ;; 234
        \$1,234 ;; 234, \$1 ;; €1,234 ;; \$1.234
        (0,100) ;; 100 ;; 0100
        \{1,234\} ;; \{1234\}
        """,
    "measures": r"""
        12\text{ m/s} ;; 12 km/h ;; 12 \text{ m}
        5 cm ;; 5 dm ;; 5 \text{ m}
        5 \text{ m} ;; 5 n ;; 5 \text{ cm}
        400 mL ;; 400 nL
        3 days ;; 3 wk
        98.6^\circ F ;; 98.6^\circ G ;; 98.6^\circ C
        5 ;; not 5 ;; more than 5 ;; 5 or more ;; 5" ;; 5' ;; \text{at least } 5
        5 ;; 5 squared ;; 5 factorial ;; 5 halves ;; 5 tenths ;; 5\text{ plus} ;; -5 ;; 5 \text{ (rejected)}
        5'10" ;; 510 ;; 5'1" ;; 5:10
        \sin 30^\circ ;; \sin 30
        """,
    "names and chains": r"""
        5 ;; x=6=5 ;; x = 5 = 6 ;; 5 \approx 4.9 ;; 4.9 \approx 5.1 ;; 5 = 6 ;; 6 - 2 = 5
        \sqrt{2} ;; \sqrt{2} \approx 1.51 ;; \sqrt{2} = 1.51
        x+y=1 ;; 1 ;; x+y=2 ;; x = 1
        ab=12 ;; 12 ;; ab
        a+b+c=0 ;; 0
        12 ;; ab = 12 ;; n(n+1) = 12 ;; |x| = 12 ;; 2x = 12 ;; \sin x = 12
        1 ;; x+y=1
        a = b = c ;; a = b = d ;; c
        y = 2x + 1 ;; y = 1 2x + 1 ;; x = 2y + 1
        """,
    "percentages": r"""
        0.5 ;; 0.5\%
        5 ;; 500\% ;; 5\%\% ;; 0.05\%
        5\% ;; 5\%\% ;; 5^\circ
        100 ;; \$100\%
        1 ;; 1\%
        """,
    "what only looks alike": r"""
        \frac{d}{dx}f ;; \frac{d}{dy}f
        \vec{a}\times\vec{b} ;; \vec{b}\times\vec{a}
        \mathbf{a}\times\mathbf{b} ;; \mathbf{b}\times\mathbf{a}
        5 ;; [5] ;; \{5\} ;; 5\text{x} ;; 5 x ;; 5!
        2\frac{1}{2} ;; 2(\frac{1}{2}) ;; 2\cdot\frac{1}{2} ;; 1
        0xF1 ;; 0x1F
        2, 3, \ldots ;; 2, 3 ;; 2, 3, 4
        1, 2, ..., 10 ;; 2, ..., 10,1 ;; 1, 2, 10
        (-\infty,-1) \cup (3,\infty) ;; (-\infty,-1) \cup (3,\infty]
        0.1 ;; 0.10000001 ;; 0.1000000000000001
        5 ;; 5.0000001 ;; 4.9999999
        0.3333333 ;; 0.3333334
        \frac{1}{2} ;; 0.5000001
        x \le 3 ;; x < 3 ;; x \ge 3 ;; 3 \le x
        1 < x < 3 ;; 3 < x < 1 ;; 1 \le x < 3 ;; [1,3)
        2^{2019} + \sqrt{2} ;; 2^{2019} + \sqrt{3}
        """,
}


@pytest.mark.parametrize("family", SAME)
def test_what_means_the_same_is_paid(family: str) -> None:
    assert differing(table(SAME[family]), should_be_paid=True) == []


@pytest.mark.parametrize("family", OTHER)
def test_what_only_looks_alike_is_not_paid(family: str) -> None:
    assert differing(table(OTHER[family]), should_be_paid=False) == []
