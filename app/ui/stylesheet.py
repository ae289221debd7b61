"""The style sheet of the whole app, made from one colour scheme."""

from __future__ import annotations

from collections.abc import Mapping

_SHEET = """
* {{ outline: none; }}
QWidget {{ color: {text}; }}
QMainWindow, #page, #scrolled {{ background: {ground}; }}
QScrollArea {{ background: transparent; border: none; }}
QToolTip {{ background: {raised}; color: {text}; border: 1px solid {border}; padding: 6px 8px; }}

#rail {{ background: {rail}; border-right: 1px solid {border}; }}
#header {{ background: {ground}; border-bottom: 1px solid {border}; }}
#brand {{ font-size: 17px; font-weight: 700; letter-spacing: 0.2px; }}
#pageTitle {{ font-size: 19px; font-weight: 650; }}
#modelName {{ font-weight: 600; }}
#title {{ font-size: 12px; font-weight: 600; color: {muted}; }}
#heading {{ font-size: 22px; font-weight: 700; }}
#section {{ font-size: 15px; font-weight: 650; }}
#muted, #hint {{ color: {muted}; }}
#hint {{ font-size: 12px; }}
#fieldProblem {{ color: {bad}; font-size: 12px; }}

#card {{ background: {surface}; border: 1px solid {border}; border-radius: 12px; }}
#popup {{ background: {raised}; border: 1px solid {border}; }}
#governor {{
  background: {surface}; border: 1px solid {border}; border-left: 3px solid {warn};
  border-radius: 12px;
}}
#banner {{ background: {bad_soft}; border: 1px solid {bad}; border-radius: 10px; }}
#rule {{ background: {border}; max-height: 1px; border: none; }}
#tag {{
  color: {muted}; background: {raised}; border: 1px solid {border}; border-radius: 6px;
  padding: 1px 6px; font-size: 12px;
}}
#fit[kind="good"] {{ color: {good}; }}
#fit[kind="warn"] {{ color: {warn}; }}
#fit[kind="bad"] {{ color: {bad}; }}
#fit[kind=""] {{ color: {muted}; }}
#applyBar {{ background: {surface}; border-top: 1px solid {border}; }}

QPushButton {{
  background: {raised}; border: 1px solid {border}; border-radius: 8px;
  padding: 7px 14px; font-weight: 550; min-height: 18px;
}}
QPushButton:hover {{ border-color: {accent}; }}
QPushButton:pressed {{ background: {accent_soft}; }}
QPushButton:focus {{ border: 2px solid {accent}; padding: 6px 13px; }}
QPushButton:disabled {{ color: {muted}; background: transparent; border: 1px dashed {border}; }}
QPushButton[primary="true"] {{
  background: {accent}; color: {accent_text}; border-color: {accent};
}}
QPushButton[primary="true"]:hover {{ background: {accent}; border-color: {text}; }}
QPushButton[primary="true"]:focus {{ border: 2px solid {text}; }}
QPushButton[primary="true"]:disabled {{
  background: {track}; color: {muted}; border-color: {track};
}}

QToolButton {{
  background: transparent; border: 1px solid transparent; border-radius: 8px; padding: 5px;
}}
QToolButton:hover {{ background: {accent_soft}; }}
QToolButton:focus {{ border-color: {accent}; }}
QToolButton::menu-indicator {{ image: none; }}
QToolButton#nav {{
  text-align: left; padding: 9px 12px; font-weight: 550; color: {muted}; border-radius: 9px;
}}
QToolButton#nav[narrow="true"] {{ padding: 9px; }}
QToolButton#nav:hover {{ background: {raised}; color: {text}; }}
QToolButton#nav:checked {{ background: {accent_soft}; color: {text}; }}
QToolButton#nav:focus {{ border: 1px solid {accent}; }}
QToolButton#chip {{
  background: {surface}; border: 1px solid {border}; border-radius: 14px; padding: 4px 12px;
  font-family: "{mono}"; font-size: 12px;
}}
QToolButton#chip:hover, QToolButton#chip:focus {{ border-color: {accent}; }}
QToolButton#send {{ background: {accent}; border-radius: 16px; padding: 6px; }}
QToolButton#send:hover, QToolButton#send:focus {{ border: 2px solid {text}; padding: 5px; }}
QToolButton#send:disabled {{ background: {track}; }}

QLineEdit, QSpinBox, QDoubleSpinBox, QComboBox {{
  background: {raised}; border: 1px solid {border}; border-radius: 8px; padding: 6px 10px;
  min-height: 20px; selection-background-color: {accent}; selection-color: {accent_text};
}}
QLineEdit:focus, QSpinBox:focus, QDoubleSpinBox:focus, QComboBox:focus {{ border-color: {accent}; }}
QLineEdit[wrong="true"], QSpinBox[wrong="true"], QDoubleSpinBox[wrong="true"] {{
  border-color: {bad};
}}
QAbstractSpinBox QLineEdit {{ background: transparent; border: none; padding: 0; }}
QComboBox::drop-down {{ border: none; width: 26px; }}
QComboBox::down-arrow {{ image: url("{down_icon}"); width: 14px; height: 14px; }}
QComboBox QAbstractItemView {{
  background: {raised}; border: 1px solid {border}; padding: 4px;
  selection-background-color: {accent_soft}; selection-color: {text};
}}
QSpinBox::up-button, QSpinBox::down-button, QDoubleSpinBox::up-button,
QDoubleSpinBox::down-button {{ width: 0; border: none; }}

QSlider {{ min-height: 24px; }}
QSlider::groove:horizontal {{ height: 6px; background: {track}; border-radius: 3px; }}
QSlider::sub-page:horizontal {{ background: {accent}; border-radius: 3px; }}
QSlider::handle:horizontal {{
  width: 16px; height: 16px; margin: -6px 0; border-radius: 9px; background: {surface};
  border: 2px solid {accent};
}}
QSlider::handle:horizontal:focus {{ background: {accent}; }}

QCheckBox {{ spacing: 10px; }}
QCheckBox::indicator {{
  width: 18px; height: 18px; border-radius: 5px; border: 1px solid {muted}; background: {raised};
}}
QCheckBox::indicator:checked {{
  background: {accent}; border-color: {accent}; image: url("{check_icon}");
}}
QCheckBox::indicator:focus {{ border: 2px solid {accent}; }}

QListWidget {{
  background: {raised}; border: 1px solid {border}; border-radius: 10px; padding: 4px 2px;
}}
QListWidget:focus {{ border-color: {accent}; }}
QPlainTextEdit, QTextBrowser {{
  background: {surface}; border: none;
  selection-background-color: {accent}; selection-color: {accent_text};
}}
#logView {{
  background: {surface}; border: 1px solid {border}; border-radius: 12px; padding: 8px;
  font-family: "{mono}"; font-size: 12px;
}}
#logView:focus {{ border-color: {accent}; }}
#prose {{ background: transparent; }}
#bubble {{ background: {accent_soft}; border-radius: 14px; }}
#codeBlock {{ background: {surface}; border: 1px solid {border}; border-radius: 10px; }}
#codeBar {{ border-bottom: 1px solid {border}; }}
#codeText {{ background: transparent; font-family: "{mono}"; font-size: 13px; }}
#composer {{ background: {surface}; border: 1px solid {border}; border-radius: 18px; }}
#composer[focused="true"] {{ border-color: {accent}; }}
#composer[dropping="true"] {{ border: 2px dashed {accent}; }}
#conversations {{ background: {rail}; border-right: 1px solid {border}; }}
#conversationView {{ background: transparent; border: none; padding: 0; }}
#conversationView QLineEdit {{ padding: 2px 8px; }}
#undoBar {{ background: {raised}; border: 1px solid {border}; border-radius: 10px; }}
#undoBar QPushButton {{ padding: 3px 10px; }}
#fileChip {{ background: {raised}; border: 1px solid {border}; border-radius: 12px; }}
#bubble #fileChip {{ background: {surface}; }}
#toolCall {{ background: {surface}; border: 1px solid {border}; border-radius: 10px; }}
#thoughts {{
  background: transparent; color: {muted}; border-left: 2px solid {border}; padding-left: 8px;
}}
#fold {{ color: {muted}; padding: 3px 6px; font-size: 13px; }}
QToolButton#fold:checked {{ background: transparent; }}
#systemPrompt {{
  background: {raised}; border: 1px solid {border}; border-radius: 8px; padding: 6px;
}}
#systemPrompt:focus {{ border-color: {accent}; }}
QToolButton:checked {{ background: {accent_soft}; }}
#composer QPlainTextEdit {{ background: transparent; }}

QProgressBar {{ background: {track}; border: none; border-radius: 3px; height: 6px; }}
QProgressBar::chunk {{ background: {accent}; border-radius: 3px; }}

QMenu {{ background: {raised}; border: 1px solid {border}; padding: 6px; }}
QMenu::item {{ padding: 7px 20px 7px 14px; border-radius: 6px; }}
QMenu::item:selected {{ background: {accent_soft}; }}
QMenu::item:disabled {{ color: {muted}; }}
QMenu::separator {{ height: 1px; background: {border}; margin: 5px 8px; }}
QDialog {{ background: {surface}; }}

QScrollBar:vertical {{ background: transparent; width: 12px; margin: 2px; }}
QScrollBar:horizontal {{ background: transparent; height: 12px; margin: 2px; }}
QScrollBar::handle {{
  background: {border}; border-radius: 4px; min-height: 32px; min-width: 32px;
}}
QScrollBar::handle:hover {{ background: {muted}; }}
QScrollBar::add-line, QScrollBar::sub-line {{ width: 0; height: 0; }}
QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}
"""


def stylesheet(values: Mapping[str, object]) -> str:
    """`values`: the scheme's colours by name, `mono` (a font family), and the files `down_icon` and
    `check_icon`, since a style sheet cannot tint an icon.
    """
    return _SHEET.format(**values)
